"""What servers hold is part of their state: in every fleet, over a restart, and between runs that share a world."""

import numpy as np
import pytest
from tests.alone import mailbox_simulation
from tests.parity.same_rounds import assert_same_rounds
from tests.parity.test_sharded import (
    DATASET,
    DISTANCE_ERROR,
    UNEVEN,
    assert_same_models,
    played,
    settings,
    sharded,
    whole,
)
from tests.uneven_effort import plan_unevenly

from hatdfed.core.energy.energy_model import Cause, joules_by_cause
from hatdfed.errors import RunFolderError
from hatdfed.setup.build.placement import Placement
from hatdfed.setup.build.simulation import make_batch

ROUNDS = 5
KEPT = {"uploads": {"keep": "samples", "memory_samples": 60}, "images_per_server": 80}


@pytest.fixture
def _uneven(monkeypatch):
    plan_unevenly(monkeypatch)


def keeping(method="d-psgd", **more):
    return settings(method, rounds=ROUNDS, **{"device_online_probability": 0.5, **KEPT, **more})


def by_mailboxes(config):
    simulation = mailbox_simulation(config, DATASET)
    return simulation.coordinator, simulation.fleet


def in_shards(config):
    return sharded(config, UNEVEN)


@pytest.mark.usefixtures("_uneven")
@pytest.mark.parametrize(("method", "more"), [("hat-dfed", {}), ("d-psgd", {}), ("d-psgd", {"train_samples": 30})])
def test_all_fleets_hold_and_send_the_same(method, more):
    config = keeping(method, uploads={**KEPT["uploads"], **more})
    coordinator, reference = by_mailboxes(config)
    expected, _ = played(coordinator, reference, ROUNDS)
    for error, (other, fleet) in ((0.0, whole(config)), (DISTANCE_ERROR, in_shards(config))):
        records, _ = played(other, fleet, ROUNDS)
        assert_same_rounds(records, expected, tolerance=1e-4, distance_error=error)
        assert_same_models(fleet, reference, tolerance=1e-4)
    assert not any(record.caught for record in expected)
    assert sum("held" in name for name in reference.snapshot()) == 9


@pytest.mark.usefixtures("_uneven")
@pytest.mark.parametrize("make", [by_mailboxes, whole, in_shards])
def test_a_run_goes_on_with_what_its_servers_held(make):
    config = keeping()
    coordinator, fleet = make(config)
    expected, _ = played(coordinator, fleet, ROUNDS)
    coordinator, begun = make(config)
    _, state = played(coordinator, begun, 2)
    snapshot = {name: array.copy() for name, array in begun.snapshot().items()}
    coordinator, again = make(config)
    again.restore(snapshot)
    rest, _ = played(coordinator, again, ROUNDS, state=state)
    assert_same_rounds(rest, expected[2:], tolerance=0.0)
    assert_same_models(again, fleet, tolerance=0.0)


@pytest.mark.parametrize("make", [by_mailboxes, whole, in_shards])
def test_the_same_round_once_more_sends_the_same(make):
    coordinator, fleet = make(keeping())
    _, state = played(coordinator, fleet, 1)
    plan = coordinator.plan(state)
    once = joules_by_cause(fleet.run_round(plan).energy)
    assert joules_by_cause(fleet.run_round(plan).energy) == once
    assert once[Cause.UPLOAD] > 0


def test_keeping_everything_changes_what_is_sent_and_nothing_else():
    anew, kept = (keeping(uploads={"keep": keep}) for keep in ("none", "samples"))
    (expected, _), (records, _) = played(*whole(anew), ROUNDS), played(*whole(kept), ROUNDS)
    for one, other in zip(records, expected, strict=True):
        np.testing.assert_array_equal(one.report.accuracy, other.report.accuracy)
        mine, theirs = joules_by_cause(one.report.energy), joules_by_cause(other.report.energy)
        assert mine[Cause.UPLOAD] < theirs[Cause.UPLOAD] or one.t == 0
        assert mine[Cause.UPLOAD] == pytest.approx(theirs[Cause.UPLOAD]) or one.t > 0
        assert mine[Cause.TRAINING] == theirs[Cause.TRAINING]


def test_runs_that_hold_the_same_share_their_work_and_others_do_not():
    configs = [keeping(method) for method in ("d-psgd", "rnd")]
    fleet = make_batch(configs, DATASET, Placement("stacked", "cpu"), names=["one", "other"]).fleets
    works = fleet.plan_work({0: 0, 1: 0}, {})
    fleet.train({0: 0, 1: 0}, works)
    works = fleet.plan_work({0: 1, 1: 1}, {})
    assert works[0] is works[9]
    fleet.rows.held[9] = fleet.rows.held[9][:1]
    other = fleet.plan_work({0: 1, 1: 1}, {})
    assert other[9] is not other[0]
    assert other[9].num_sent > other[0].num_sent


@pytest.mark.parametrize("held", [np.array([10**6]), np.array([-1]), np.array([0.5]), np.array([[1]])])
def test_samples_that_the_data_do_not_have_are_refused(held):
    _, fleet = whole(keeping())
    with pytest.raises(RunFolderError, match=r"3\.held names samples that it does not have"):
        fleet.restore({**fleet.snapshot(), "3.held": held})
