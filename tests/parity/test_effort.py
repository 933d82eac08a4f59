"""Servers that train more, less or not at all do so in every fleet alike."""

import numpy as np
import pytest
from tests.alone import mailbox_simulation
from tests.parity.same_rounds import assert_same_rounds
from tests.parity.test_sharded import (
    DATASET,
    DISTANCE_ERROR,
    EVEN,
    UNEVEN,
    assert_same_models,
    played,
    settings,
    sharded,
    whole,
)
from tests.uneven_effort import make_uneven_effort, plan_unevenly

from hatdfed.core.effort import full_effort
from hatdfed.core.energy.energy_model import Cause
from hatdfed.setup.build.placement import Placement
from hatdfed.setup.build.simulation import make_batch

ROUNDS = 4


@pytest.fixture
def _uneven(monkeypatch):
    plan_unevenly(monkeypatch)


def few_devices(method, **more):
    return settings(method, rounds=ROUNDS, **{"device_online_probability": 0.5, **more})


def by_mailboxes(config):
    simulation = mailbox_simulation(config, DATASET)
    return simulation.coordinator, simulation.fleet


@pytest.mark.usefixtures("_uneven")
@pytest.mark.parametrize("method", ["hat-dfed", "hat-dfed-plus", "sgp", "d-psgd"])
def test_uneven_efforts_are_the_same_in_mailboxes_stacks_and_shards(method):
    config = few_devices(method, codec="float32")
    coordinator, reference = by_mailboxes(config)
    expected, _ = played(coordinator, reference, ROUNDS)
    for error, (other, fleet) in ((0.0, whole(config)), (DISTANCE_ERROR, sharded(config, UNEVEN))):
        records, _ = played(other, fleet, ROUNDS)
        assert_same_rounds(records, expected, tolerance=1e-4, distance_error=error)
        assert_same_models(fleet, reference, tolerance=1e-4)
    assert not any(record.caught for record in expected)


@pytest.mark.usefixtures("_uneven")
def test_a_server_that_rests_or_asks_nobody_spends_nothing_on_it_and_still_sends():
    config = few_devices("d-psgd")
    records, _ = played(*whole(config), ROUNDS)
    for t, record in enumerate(records):
        effort = make_uneven_effort(t, config.servers)
        spent = {cause: np.zeros(config.servers) for cause in Cause}
        for row in record.report.energy:
            spent[row.cause][row.receiver if row.sender is None else row.sender] += row.joules
        trains = (effort.passes > 0) & effort.asks
        assert (spent[Cause.TRAINING] > 0).tolist() == trains.tolist()
        assert (spent[Cause.UPLOAD] > 0).tolist() == effort.asks.tolist()
        assert (spent[Cause.LINK] > 0).all()


def test_full_effort_gives_the_very_rounds_of_a_plan_without_one(monkeypatch):
    config = few_devices("hat-dfed")
    coordinator, fleet = whole(config)
    expected, _ = played(coordinator, fleet, ROUNDS)
    plan = type(coordinator).plan
    everything = full_effort(config.servers, config.local_passes)
    monkeypatch.setattr(type(coordinator), "plan", lambda self, *given: plan(self, *given)._replace(effort=everything))
    other, same = whole(config)
    records, _ = played(other, same, ROUNDS)
    assert_same_rounds(records, expected, tolerance=0.0)
    np.testing.assert_array_equal(same.models, fleet.models)


def test_runs_in_one_world_share_their_work_only_as_far_as_they_train_alike():
    configs = [few_devices(method) for method in ("d-psgd", "rnd")]
    batch = make_batch(configs, DATASET, Placement("stacked", "cpu"), names=["one", "other"])
    fleet = batch.fleets
    coordinators = [simulation.coordinator for simulation in batch.simulations]
    plans = {run: each.plan(each.start(np.zeros(9))) for run, each in enumerate(coordinators)}
    plans[1] = plans[1]._replace(effort=full_effort(9, 1))
    works = fleet.plan_work({0: 0, 1: 0}, {1: plans[1].effort})
    assert sum(map(len, works[0].batches)) == 2 * sum(map(len, works[9].batches)) > 0
    shared = fleet.plan_work({0: 0, 1: 0}, {})
    assert shared[0] is shared[9]


def test_shards_are_told_of_their_own_servers_only():
    config = few_devices("d-psgd")
    coordinator, fleet = sharded(config, EVEN)
    plan = coordinator.plan(coordinator.start(np.zeros(9)))._replace(effort=make_uneven_effort(0, 9))
    report = fleet.run_round(plan)
    rests = [each.num_samples == 0 for each in report.servers]
    assert rests == (~((plan.effort.passes > 0) & plan.effort.asks)).tolist()
