"""Worlds in which servers disagree, change, lie or lose messages: the same rounds in every fleet, and after a pause."""

import json
from itertools import pairwise

import numpy as np
import pytest
import torch
from tests.alone import run_alone
from tests.parity.same_rounds import assert_same_rounds

from hatdfed import resume, run
from hatdfed.core.coordinator import read_state
from hatdfed.core.delivery import Delivery
from hatdfed.core.round import SKETCH_SIZE
from hatdfed.core.timing.deadline import Deadline
from hatdfed.data.datasets import load_dataset
from hatdfed.fleets.sharded.fleet import LocalShards, ShardedFleet
from hatdfed.jsonable import to_jsonable
from hatdfed.setup.build.placement import Placement
from hatdfed.setup.build.ray_shards import make_shard
from hatdfed.setup.build.simulation import make_batch
from hatdfed.setup.build.world import make_world
from hatdfed.setup.layers import config_members, resolve

DATASET = load_dataset("digits")
ROUNDS = 8
# Links in every round; all exchange models in rounds 0 and 1, and are introduced in round 2.
EARLY = {"ready": 1.0, "latest": 0.25, "quiet": 0, "curiosity": 0.3, "thrift": 0.0}  # prices take time
FIXED = {
    "dataset": "digits", "network": "linear", "servers": 5, "rounds": ROUNDS, "validation_images": 100,
    "codec": "float32", "device_online_probability": 0.7, "learner": {"learning_rate": 0.02},
}  # fmt: skip
TRUST = {"method": "hat-dfed-trust", "policy": EARLY, "schedule": {"every": 1, "finish_rounds": 2}}
TWO_GROUPS = {"groups": 2, "differ": "labels"}
CHANGING = {**TWO_GROUPS, "changing": 0.4, "change_at": 0.5}
EVERYBODY = 5 * 4


def settings(world, **more):
    return resolve({**FIXED, **TRUST, "world": world, **more})


def simulation_of(config, fleet):
    (simulation,) = make_batch([config], DATASET, Placement(fleet, "cpu"), names=[""]).simulations
    return simulation


def played(coordinator, fleet, rounds=ROUNDS):
    records = []
    run_alone(coordinator, fleet, rounds=rounds, sinks=[lambda _, record: records.append(record)])
    return records


def assert_same_accuracy(fleet, other):
    mine, theirs = fleet.final_accuracy(), other.final_accuracy()
    for name in ("overall", "personal", "own"):
        np.testing.assert_allclose(getattr(mine, name), getattr(theirs, name), atol=1e-12)


def assert_parity(config):
    """The records of the reference."""
    boxes, stacked = (simulation_of(config, fleet) for fleet in ("mailbox", "stacked"))
    np.testing.assert_array_equal(boxes.fleet.validation_accuracy(), stacked.fleet.validation_accuracy())
    expected = played(*boxes, config.rounds)
    assert_same_rounds(played(*stacked, config.rounds), expected)
    torch.testing.assert_close(stacked.fleet.models, boxes.fleet.models, rtol=0, atol=1e-4)
    assert stacked.fleet.refused == boxes.fleet.refused
    assert_same_accuracy(stacked.fleet, boxes.fleet)
    return expected


def test_groups_that_change_before_the_first_round_are_measured_as_they_are_then():
    config = settings({**CHANGING, "changing": 1.0, "change_at": 0.0}, rounds=2)
    assert_parity(config)
    assert all(source.change is None for source in make_world(config, DATASET).sources)


@pytest.mark.parametrize("world", [CHANGING, {**CHANGING, "differ": "inputs"}], ids=["labels", "inputs"])
def test_two_groups_of_which_some_change(world):
    records = assert_parity(settings(world))
    links = [record.draw.topology.num_links for record in records]
    assert links[1:3] == [5, EVERYBODY]
    np.testing.assert_array_equal(records[2].draw.mixing_matrix, np.eye(5))


def test_in_an_introduction_all_are_judged_and_nobody_is_merged():
    record = played(*simulation_of(settings(TWO_GROUPS), "stacked"), 3)[2]
    for i, report in enumerate(record.report.servers):
        assert sorted(report.senders.tolist()) == list(range(5))
        np.testing.assert_array_equal(report.importance, np.where(report.senders == i, 1.0, 0.0))
        assert report.scores.keys() >= {"harm", "evidence", "knowledge"}
        assert np.isfinite(report.scores["harm"]).all()


def test_own_feedback_and_unequal_amounts():
    """Servers are measured on sets of different sizes."""
    assert_parity(settings({**CHANGING, "amount_ratio": 4.0}, feedback="own"))


def test_bad_data():
    assert_parity(settings({"bad_labels": 0.2, "broken_sensors": 0.2}))


@pytest.mark.parametrize("attack", ["sign-flip", "stale", "alie", "label-flip", "sleeper", "false-reports"])
def test_liars_under_trust(attack):
    config = settings({"liars": 0.4, "attack": attack}, rounds=6)
    liars = np.flatnonzero(config_members(config).is_liar)
    assert len(liars) == 2
    caught = [each.server for record in assert_parity(config) for each in record.caught]
    assert caught == (liars.tolist() if attack == "false-reports" else [])


@pytest.mark.parametrize("attack", ["scale", "noise"])
@pytest.mark.parametrize("method", ["hat-dfed", "d-psgd"])
def test_liars_under_other_methods(method, attack):
    world = {"liars": 0.4, "attack": attack}
    assert_parity(resolve({**FIXED, "method": method, "rounds": 4, "world": world}))


def test_what_liars_send_is_not_what_they_have():
    config = resolve({**FIXED, "method": "d-psgd", "rounds": 1, "world": {"liars": 0.2, "attack": "scale"}})
    (liar,) = np.flatnonzero(config_members(config).is_liar)
    honest = config.model_copy(update={"world": resolve({}).world})
    lied, plain = (simulation_of(each, "stacked") for each in (config, honest))
    records = [played(*simulation, 1)[0] for simulation in (lied, plain)]
    heard = set(records[0].draw.topology.receivers(liar))
    assert heard
    for i in range(5):
        assert torch.equal(lied.fleet.models[i], plain.fleet.models[i]) == (i not in heard)


@pytest.mark.parametrize("method", ["hat-dfed", "sgp", "d-psgd"])
def test_links_that_lose_messages(method):
    config = resolve({**FIXED, "method": method, "rounds": 4, "world": {"link_loss": [0.2, 0.6]}})
    records = assert_parity(config)
    drawn = sum(record.draw.topology.num_links for record in records)
    arrived = sum(int(record.report.arrived(record.draw.topology).sum()) for record in records)
    assert 0.2 * drawn < arrived < 0.9 * drawn


def test_a_lost_message_is_paid_for():
    config = resolve({**FIXED, "method": "sgp", "rounds": 3, "world": {"link_loss": [0.5, 0.5]}})
    lossless = config.model_copy(update={"world": resolve({}).world})
    lossy, plain = (played(*simulation_of(each, "stacked"), 3) for each in (config, lossless))
    for one, other in zip(lossy, plain, strict=True):
        assert one.draw.topology == other.draw.topology
        assert one.report.energy == other.report.energy


@pytest.mark.parametrize("fleet", ["mailbox", "stacked"])
def test_push_sum_loses_no_mass_with_its_messages(fleet):
    config = resolve({**FIXED, "method": "sgp", "world": {"link_loss": [0.3, 0.7]}})
    coordinator, servers = simulation_of(config, fleet)

    def masses():
        snapshot = servers.snapshot()
        return [float(snapshot[f"{i}.scalars"][1]) for i in range(5)]

    seen = []
    run_alone(coordinator, servers, rounds=ROUNDS, sinks=[lambda *_: seen.append(masses())])
    np.testing.assert_allclose(np.sum(seen, axis=1), 5, atol=1e-9)
    assert np.ptp(seen[-1]) > 0.01


def test_runs_of_different_worlds_in_one_fleet_are_the_runs_alone():
    configs = [
        settings(CHANGING, rounds=4),
        settings({"liars": 0.4, "attack": "sign-flip"}, seed=1, rounds=4),
        resolve({**FIXED, "method": "sgp", "seed": 2, "rounds": 4, "world": {"link_loss": [0.2, 0.6]}}),
        resolve({**FIXED, "method": "hat-dfed", "rounds": 4}),
    ]
    batch = make_batch(configs, DATASET, Placement("stacked", "cpu"), names=["x"] * len(configs))
    for config, simulation in zip(configs, batch.simulations, strict=True):
        alone = simulation_of(config, "stacked")
        assert_same_rounds(played(*simulation, 4), played(*alone, 4))
        torch.testing.assert_close(simulation.fleet.models, alone.fleet.models, rtol=0, atol=1e-5)


def sharded_simulation_of(config, bounds):
    """Its coordinator, and its servers in shards that lie in this process."""
    (simulation,) = make_batch([config], DATASET, Placement("stacked", "cpu"), names=["x"]).simulations
    coordinator, world = simulation.coordinator, make_world(config, DATASET)
    shards = LocalShards([make_shard(config, DATASET, *ends, "cpu") for ends in pairwise(bounds)], bounds)
    pace = coordinator.pace if isinstance(coordinator.pace, Deadline) else None
    return coordinator, ShardedFleet(shards, coordinator.prices, world.test, Delivery(world.loss, pace))


@pytest.mark.parametrize("bounds", [(0, 2, 5), (0, 1, 4, 5)])
@pytest.mark.parametrize("method", ["hat-dfed", "sgp"])
def test_links_that_lose_messages_in_shards(method, bounds):
    config = resolve({**FIXED, "method": method, "rounds": 4, "world": {"link_loss": [0.3, 0.7]}})
    (coordinator, sharded), (reference, whole) = sharded_simulation_of(config, bounds), simulation_of(config, "stacked")
    mine, theirs = played(coordinator, sharded, 4), played(reference, whole, 4)
    assert not all(record.report.arrived(record.draw.topology).all() for record in mine)
    assert_same_rounds(mine, theirs, distance_error=3 / SKETCH_SIZE**0.5)
    snapshot = sharded.snapshot()
    masses = [float(snapshot[f"{i}.scalars"][1]) for i in range(5)]
    np.testing.assert_allclose(np.sum(masses), 5, atol=1e-9, err_msg="mass is lost with messages")


@pytest.mark.parametrize("bounds", [(0, 2, 5), (0, 1, 4, 5)])
def test_a_fleet_in_shards(bounds):
    config = settings(CHANGING)
    coordinator, sharded = sharded_simulation_of(config, bounds)
    reference, whole = simulation_of(config, "stacked")
    mine, theirs = played(coordinator, sharded), played(reference, whole)
    assert_same_rounds(mine, theirs, distance_error=3 / SKETCH_SIZE**0.5)
    for one, other in zip(sharded.answers(), whole.answers(), strict=True):
        np.testing.assert_array_equal(one, other)
    assert_same_accuracy(sharded, whole)


@pytest.mark.parametrize("fleet", ["mailbox", "stacked"])
def test_a_run_that_was_stopped_after_the_introduction_goes_on_as_if_it_had_not(tmp_path, fleet):
    """With liars that must remember what they began with."""
    world = {**TWO_GROUPS, "liars": 0.2, "attack": "stale"}
    shared = {**FIXED, **TRUST, "world": world, "fleet": fleet, "checkpoint_every": 1, "horizon": ROUNDS}
    whole = run(**shared)
    stopped = run(**{**shared, "rounds": 4}, out=tmp_path / "run")
    assert len([row for row in stopped.links if row["t"] == 2]) == EVERYBODY
    gone_on = resume(tmp_path / "run", {"rounds": ROUNDS}, fleet=fleet)
    assert gone_on.links == whole.links
    assert gone_on.ledger == whole.ledger
    assert gone_on.summary["accuracy_by_server"] == whole.summary["accuracy_by_server"]


@pytest.mark.parametrize("pause", [3, 5], ids=["before-the-change", "after-the-change"])
@pytest.mark.parametrize("fleet", ["mailbox", "stacked"])
def test_a_checkpoint_between_introduction_and_end_is_all_that_a_changing_world_needs(fleet, pause):
    config = settings(CHANGING)
    expected = played(*simulation_of(config, fleet))
    coordinator, first = simulation_of(config, fleet)
    half = run_alone(coordinator, first, rounds=pause)
    kept = json.loads(json.dumps(to_jsonable(half)))
    snapshot = {name: array.copy() for name, array in first.snapshot().items()}
    coordinator, second = simulation_of(config, fleet)
    second.restore(snapshot)
    state = read_state(kept, coordinator.start(second.validation_accuracy()))
    rest = []
    run_alone(coordinator, second, rounds=ROUNDS, sinks=[lambda _, record: rest.append(record)], state=state)
    assert_same_rounds(rest, expected[pause:], tolerance=0)
