"""Servers at their own pace: what equal machines do, what unequal ones do, and the same in every fleet."""

import numpy as np
import pytest
from tests.parity.same_rounds import assert_same_rounds
from tests.parity.test_sharded import DISTANCE_ERROR, UNEVEN, assert_same_models, sharded, whole
from tests.parity.test_sharded import settings as sharded_settings
from tests.parity.test_worlds import assert_parity, played, simulation_of

import hatdfed
from hatdfed.errors import ConfigError
from hatdfed.setup.layers import resolve

FIXED = {
    "dataset": "digits", "network": "linear", "servers": 5, "rounds": 12, "validation_images": 100,
    "codec": "float32", "device_online_probability": 0.7, "learner": {"learning_rate": 0.02},
}  # fmt: skip
EQUAL = {"weak_seconds_per_sample": 0.05, "strong_seconds_per_sample": 0.05}
UNEQUAL = {"weak_seconds_per_sample": 0.2, "strong_seconds_per_sample": 0.03}


def settings(method="hat-dfed", time=UNEQUAL, asynchronous=True, **more):
    return resolve({**FIXED, "method": method, "time": {**time, "asynchronous": asynchronous}, **more})


@pytest.mark.parametrize("method", ["hat-dfed", "hat-dfed-plus", "el-local", "sgp", "ad-psgd"])
def test_with_equal_machines_the_run_is_the_synchronous_one_bit_for_bit(method):
    runs = [played(*simulation_of(settings(method, EQUAL, which), "stacked"), 12) for which in (True, False)]
    assert_same_rounds(*runs)
    for one, other in zip(*runs, strict=True):
        np.testing.assert_array_equal(one.report.num_samples, other.report.num_samples)
        np.testing.assert_array_equal(one.report.accuracy, other.report.accuracy)
        assert one.report.energy == other.report.energy


@pytest.mark.parametrize("method", ["hat-dfed", "sgp", "ad-psgd"])
def test_unequal_machines_are_the_same_in_mailboxes_and_stacks(method):
    records = assert_parity(settings(method))
    assert not any(record.caught for record in records)


def test_and_in_shards():
    config = sharded_settings("ad-psgd", rounds=6, time={**UNEQUAL, "asynchronous": True})
    coordinator, reference = whole(config)
    expected = played(coordinator, reference, 6)
    other, fleet = sharded(config, UNEVEN)
    assert_same_rounds(played(other, fleet, 6), expected, tolerance=1e-4, distance_error=DISTANCE_ERROR)
    assert_same_models(fleet, reference, tolerance=1e-4)


@pytest.mark.parametrize("method", ["hat-dfed", "hat-dfed-plus", "d-psgd", "ad-psgd"])
def test_servers_train_in_proportion_to_their_speed_and_rest_without_cost(method):
    coordinator, fleet = simulation_of(settings(method), "stacked")
    records = played(coordinator, fleet, 12)
    pace = coordinator.pace
    due = np.stack([pace.find_due(t) for t in range(12)])
    trained = np.stack([record.report.num_samples > 0 for record in records])
    np.testing.assert_array_equal(trained, due)
    assert due.all(axis=0).any()
    assert not due.all()
    for record, ready in zip(records, due, strict=True):
        assert ready[record.draw.topology.pairs[:, 0]].all()
        assert record.time.seconds == pace.tick


def test_a_server_that_rests_keeps_its_model():
    coordinator, fleet = simulation_of(settings("ad-psgd"), "stacked")
    state = coordinator.start(fleet.validation_accuracy())
    for _ in range(6):
        before, plan = fleet.models, coordinator.plan(state)
        report = fleet.run_round(plan)
        rests = ~coordinator.pace.find_due(plan.t)
        assert (fleet.models[rests] == before[rests]).all()
        state, _ = coordinator.learn(state, plan, report)


def test_time_passes_faster_where_nobody_waits():
    waiting, alone = (hatdfed.run(settings(asynchronous=which)).summary for which in (False, True))
    assert alone["simulated_seconds"] < 0.4 * waiting["simulated_seconds"]
    assert alone["total_energy_mj"] < waiting["total_energy_mj"]


def test_a_run_is_resumed_to_the_same_result(tmp_path):
    whole = hatdfed.run(settings("ad-psgd"), out=tmp_path / "whole")
    hatdfed.run(settings("ad-psgd", rounds=5, horizon=12), out=tmp_path / "part")
    rest = hatdfed.resume(tmp_path / "part", {"rounds": 12})
    assert [row["avg_accuracy"] for row in rest.rounds] == [row["avg_accuracy"] for row in whole.rounds]
    assert [row["links"] for row in rest.rounds] == [row["links"] for row in whole.rounds]


def test_a_deadline_for_servers_that_wait_for_nobody_is_refused():
    with pytest.raises(ConfigError, match="need no deadline"):
        settings(time={**UNEQUAL, "deadline_seconds": 3.0})


def test_the_age_of_every_model_is_on_record():
    slow_and_fast = {"weak_seconds_per_sample": 0.1, "strong_seconds_per_sample": 0.01, "asynchronous": True}
    result = hatdfed.run(
        method="full", servers=4, rounds=12, dataset="synthetic", network="linear", seed=1, time=slow_and_fast
    )
    ages = [row["age_seconds"] for row in result.links]
    assert ages
    assert all(age >= 0 for age in ages)
    assert max(ages) > 0, "somebody's last model was finished some ticks ago"
    synchronous = hatdfed.run(method="full", servers=4, rounds=2, dataset="synthetic", network="linear", seed=1)
    assert {row["age_seconds"] for row in synchronous.links} == {None}
