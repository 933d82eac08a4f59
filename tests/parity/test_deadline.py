"""Deadlines are the same in every fleet that simulates them, and change nothing while nobody is late."""

import json

import numpy as np
import pytest
from tests.parity.same_rounds import assert_same_rounds
from tests.parity.test_worlds import assert_parity, played, sharded_simulation_of, simulation_of

import hatdfed
from hatdfed.core.coordinator import read_state
from hatdfed.core.round import SKETCH_SIZE
from hatdfed.jsonable import to_jsonable
from hatdfed.setup.layers import resolve

FIXED = {
    "dataset": "digits", "network": "linear", "servers": 5, "rounds": 8, "validation_images": 100,
    "codec": "float32", "device_online_probability": 0.7, "learner": {"learning_rate": 0.02},
}  # fmt: skip
SLOW = {"time": {"weak_seconds_per_sample": 0.2, "strong_seconds_per_sample": 0.01}}


def settings(method="hat-dfed", deadline=None, **more):
    return resolve({**FIXED, "method": method, "time": {**SLOW["time"], "deadline_seconds": deadline}, **more})


@pytest.mark.parametrize("method", ["hat-dfed", "sgp", "d-psgd"])
def test_who_is_late_is_the_same_in_mailboxes_and_stacks(method):
    records = assert_parity(settings(method, deadline=5.0))
    lost = [~record.report.arrived(record.draw.topology) for record in records]
    assert any(each.any() for each in lost)
    assert not all(each.all() for each in lost if len(each))
    assert not any(record.caught for record in records)
    assert all(record.time.seconds <= 5.0 for record in records)


@pytest.mark.parametrize("method", ["hat-dfed", "sgp"])
def test_who_is_late_is_the_same_in_shards(method):
    config = settings(method, deadline=5.0)
    mine = played(*sharded_simulation_of(config, (0, 1, 4, 5)), 8)
    theirs = played(*simulation_of(config, "stacked"), 8)
    assert not all(record.report.arrived(record.draw.topology).all() for record in mine)
    assert_same_rounds(mine, theirs, distance_error=3 / SKETCH_SIZE**0.5)
    assert [record.time.seconds for record in mine] == [record.time.seconds for record in theirs]


def test_a_deadline_that_nobody_misses_changes_no_bit():
    plain, limited = (played(*simulation_of(settings(deadline=limit), "stacked"), 8) for limit in (None, 1e6))
    assert_same_rounds(limited, plain)
    for one, other in zip(limited, plain, strict=True):
        np.testing.assert_array_equal(one.report.accuracy, other.report.accuracy)
        assert one.time.seconds == other.time.seconds
        assert one.report.energy == other.report.energy


def test_a_deadline_makes_rounds_shorter_and_leaves_slow_servers_behind():
    plain, limited = (played(*simulation_of(settings(deadline=limit), "stacked"), 8) for limit in (None, 2.0))
    assert sum(record.time.seconds for record in limited) < 0.5 * sum(record.time.seconds for record in plain)
    trained = np.sum([record.report.num_samples > 0 for record in limited], axis=0)
    is_slow = limited[0].time.compute > 2.0
    assert is_slow.any()
    assert (trained[is_slow] < 8).all()
    assert (trained[~is_slow] == 8).all()


def test_slow_servers_exchange_models_once_they_are_done():
    records = played(*simulation_of(settings(deadline=4.0, rounds=16), "stacked"), 16)
    is_slow = records[0].time.compute > 4.0
    heard = np.zeros(5, dtype=bool)
    for record in records:
        pairs = record.draw.topology.pairs
        heard[pairs[record.report.arrived(record.draw.topology), 1]] = True
    assert is_slow.any()
    assert heard.all()


def test_a_run_with_a_deadline_is_resumed_to_the_same_result(tmp_path):
    whole = hatdfed.run(settings(deadline=2.0), out=tmp_path / "whole")
    hatdfed.run(settings(deadline=2.0, rounds=3, horizon=8), out=tmp_path / "part")
    rest = hatdfed.resume(tmp_path / "part", {"rounds": 8})
    names = ("avg_accuracy", "simulated_seconds", "training_joules", "links")
    assert [[row[name] for name in names] for row in rest.rounds] == [
        [row[name] for name in names] for row in whole.rounds
    ]


def test_how_long_servers_are_busy_survives_json():
    coordinator, _ = simulation_of(settings(deadline=2.0), "stacked")
    state = coordinator.start(np.zeros(5))._replace(busy=np.array([0.0, 1.5, 0.1, 0.0, 2.0]))
    again = read_state(json.loads(json.dumps(to_jsonable(state))), coordinator.start(np.zeros(5)))
    np.testing.assert_array_equal(again.busy, state.busy)


def test_a_run_whose_deadline_nobody_meets_goes_on(tmp_path):
    result = hatdfed.run(rounds=12, servers=3, dataset="synthetic", network="linear", time={"deadline_seconds": 0.5})
    seconds = [row["simulated_seconds"] for row in result.rounds]
    assert min(seconds) > 0, "a round in which everybody is busy lasts until its deadline"
    trained = {row["t"] for row in result.ledger if row["cause"] == "training" and row["joules"]}
    assert len(trained) > 1, "whoever is done trains again"
