"""The training policy `by-battery`: less training while the charge is low."""

import numpy as np
import pytest
from tests.small_runs import SMALL

import hatdfed
from hatdfed.core.training import TRAINING
from hatdfed.core.training.base import TrainingContext
from hatdfed.errors import ConfigError
from hatdfed.randomness import stream

POLICY = TRAINING["by-battery"]


def propose(charge, capacity, passes=4, **settings):
    size = 1 if charge is None else len(charge)
    context = TrainingContext(
        t=0, horizon=10, passes=passes, active=np.ones(size, dtype=bool), training_joules=np.ones(size),
        upload_joules=np.ones(size), charge=charge, capacity=capacity,
    )  # fmt: skip
    return POLICY(**settings).propose(None, context, stream(0, "test"))


def test_passes_rise_with_the_charge():
    charge = np.array([0.0, 30.0, 30.1, 44.0, 59.0, 60.0, 100.0])
    effort = propose(charge, np.full(7, 100.0))
    assert effort.passes.tolist() == [0, 0, 1, 2, 4, 4, 4]
    assert effort.asks.tolist() == [False, False, True, True, True, True, True]


def test_servers_on_mains_train_in_full():
    assert propose(np.array([np.inf, 0.0]), np.array([np.inf, 0.0])).passes.tolist() == [4, 0]
    assert propose(None, None).passes.tolist() == [4]


@pytest.mark.parametrize("settings", [{"low": 0.6, "high": 0.6}, {"low": -0.1}, {"high": 1.5}])
def test_bounds_that_cannot_be_are_refused(settings):
    with pytest.raises(ConfigError, match=r"training\.low"):
        POLICY(**settings)


def test_a_run_trains_less_when_batteries_are_low_and_is_away_less():
    settings = {**SMALL, "method": "rnd", "servers": 4, "rounds": 25}
    supply = {"battery_joules": 300, "first_charge": 0.4, "harvest_watts": 0.12, "round_seconds": 60}
    always, careful = (
        hatdfed.run(**settings, supply=supply, training={"name": name}) for name in ("always", "by-battery")
    )
    rested = [row for row in careful.servers if not row["away"] and not row["num_samples"]]
    assert len(rested) > 5
    assert careful.summary["servers_away"] < always.summary["servers_away"]
    assert min(row["charge"] for row in careful.servers) >= 0
