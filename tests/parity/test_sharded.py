"""A fleet in shards against one that is whole: the same topologies, energies, reports and models."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from tests.alone import run_alone
from tests.parity.same_rounds import assert_same_rounds

from hatdfed.core.links import LinkTable, Topology
from hatdfed.core.policies.base import certain
from hatdfed.core.round import SKETCH_SIZE, RoundPlan
from hatdfed.data.datasets import load_dataset
from hatdfed.fleets.sharded.fleet import LocalShards, ShardedFleet
from hatdfed.fleets.sharded.orders import cut, even_bounds
from hatdfed.fleets.stacked.fleet import StackedFleet
from hatdfed.fleets.stacked.rows import Execution, RunServers
from hatdfed.setup.build.program import initial_seed, make_actors
from hatdfed.setup.build.ray_shards import make_shard
from hatdfed.setup.build.world import make_world
from hatdfed.setup.layers import resolve

DATASET = load_dataset("synthetic", options={"train": 800, "validation": 150, "test": 60})
ROUNDS = 3
DISTANCE_ERROR = 3 / SKETCH_SIZE**0.5  # three standard errors of the estimate
EVEN, UNEVEN, ALONE = (0, 3, 6, 9), (0, 1, 7, 9), (0, 9)


def settings(method="hat-dfed", **more):
    fixed = {"dataset": "synthetic", "network": "small-cnn", "servers": 9, "rounds": ROUNDS, "validation_images": 100}
    return resolve({"method": method, **fixed, "device_online_probability": 0.1, **more})


def whole(config):
    world = make_world(config, DATASET)
    coordinator, program = make_actors(config, DATASET)
    seeds = [initial_seed(config, i) for i in range(config.servers)]
    member = RunServers(program, world.sources, coordinator.prices, seeds, world.test)
    return coordinator, StackedFleet([member], Execution(torch.device("cpu"), 4, 5)).fleets[0]


def sharded(config, bounds):
    coordinator, _ = make_actors(config, DATASET)
    world = make_world(config, DATASET)
    shards = [make_shard(config, DATASET, first, last, "cpu") for first, last in pairwise(bounds)]
    return coordinator, ShardedFleet(LocalShards(shards, bounds), coordinator.prices, world.test)


def played(coordinator, fleet, rounds=ROUNDS, **more):
    records = []
    state = run_alone(coordinator, fleet, rounds=rounds, sinks=[lambda _, record: records.append(record)], **more)
    return records, state


def assert_same_models(fleet, other, tolerance=1e-5):
    mine, theirs = fleet.snapshot(), other.snapshot()
    assert mine.keys() == theirs.keys()
    for name in mine:
        np.testing.assert_allclose(mine[name], theirs[name], atol=tolerance, err_msg=name)


def assert_parity(config, bounds, tolerance=1e-5):
    coordinator, fleet = sharded(config, bounds)
    reference, one = whole(config)
    np.testing.assert_array_equal(fleet.validation_accuracy(), one.validation_accuracy())
    rounds = config.rounds
    mine, theirs = played(coordinator, fleet, rounds)[0], played(reference, one, rounds)[0]
    assert_same_rounds(mine, theirs, tolerance=tolerance, distance_error=DISTANCE_ERROR)
    assert_same_models(fleet, one, tolerance)
    np.testing.assert_array_equal(fleet.answers().scores, one.answers().scores)
    np.testing.assert_array_equal(fleet.final_accuracy()[:2], one.final_accuracy()[:2])
    return fleet


def test_shards_measure_the_metrics_that_one_fleet_does():
    config = settings(metrics=["macro_f1", "calibration_error"], rounds=2)
    (coordinator, fleet), (reference, one) = sharded(config, UNEVEN), whole(config)
    mine, theirs = played(coordinator, fleet, 2)[0], played(reference, one, 2)[0]
    for record, other in zip(mine, theirs, strict=True):
        for server, told in zip(record.report.servers, other.report.servers, strict=True):
            assert list(server.metrics) == list(config.metrics)
            assert server.metrics == pytest.approx(told.metrics, abs=1e-5)
    final, wanted = fleet.final_accuracy().metrics, one.final_accuracy().metrics
    assert list(final) == list(config.metrics)
    for name in config.metrics:
        np.testing.assert_allclose(final[name], wanted[name], atol=1e-5)
        assert final[name].shape == (config.servers,)


@pytest.mark.parametrize("bounds", [EVEN, UNEVEN, ALONE])
@pytest.mark.parametrize("method", ["hat-dfed", "sgp", "d-psgd", "morph"])
def test_shards_of_any_size(method, bounds):
    assert_parity(settings(method), bounds)


@pytest.mark.parametrize("codec", ["float16", "int8", "int4"])
def test_models_cross_as_the_codec_writes_them(codec):
    """Rounding may turn a difference in the last digit into a larger one, so few rounds and a wider tolerance."""
    assert_parity(settings(codec=codec, rounds=2), UNEVEN, tolerance=1e-3)


def test_hat_dfed_plus_in_eight_bits():
    assert_parity(settings("hat-dfed-plus", codec="int8", rounds=3), EVEN, tolerance=1e-3)


@pytest.mark.parametrize("method", ["hat-dfed", "hat-dfed-plus"])
def test_servers_that_consider_a_few_others_only(method):
    assert_parity(settings(method, codec="float32", candidates=4), UNEVEN)


def test_every_server_alone_in_its_shard():
    assert_parity(settings("pens", servers=4), (0, 1, 2, 3, 4))


def test_links_of_a_round_need_every_model_once_for_each_shard():
    config = settings(codec="int8")
    coordinator, fleet = sharded(config, EVEN)
    everybody = ~np.eye(9, dtype=bool)
    plan = coordinator.plan(coordinator.start(np.zeros(9)))
    fleet.run_round(plan._replace(draw=plan.draw._replace(topology=Topology(everybody))))
    model = 32 / 8 * fleet.num_params
    models = fleet.posted_bytes / model
    assert 9 * 2 * 0.25 < models < 9 * 2 * 0.35  # nine models to two other shards each, a quarter of float32 and scales


def test_orders_name_what_each_shard_needs():
    links = [(0, 1), (0, 4), (1, 4), (2, 0), (4, 0), (4, 1), (5, 1)]  # receiver, sender
    table = LinkTable.all_of(6)
    mixing = np.where(Topology.from_pairs(6, links).links, np.arange(36.0).reshape(6, 6) / 64, 0.0)
    draw = certain(table, table.from_dense(mixing > 0), table.from_dense(mixing))
    first, second, third = cut(RoundPlan(7, draw), (0, 2, 5, 6))
    assert first.t == 7
    assert first.receiver.tolist() == [0, 0, 1]
    assert first.sender.tolist() == [1, 4, 4]
    assert first.guests.tolist() == [4]
    assert {shard: rows.tolist() for shard, rows in first.post.items()} == {1: [0, 1], 2: [1]}
    assert {shard: rows.tolist() for shard, rows in second.post.items()} == {0: [2]}
    assert second.num_receivers.tolist() == [0, 0, 2]
    assert second.receiver.tolist() == [0, 2, 2]
    own, received = second.mixing
    assert own.tolist() == [1 - 12 / 64, 1.0, 1 - (24 + 25) / 64]
    assert received.tolist() == [12 / 64, 24 / 64, 25 / 64]
    assert third.post == {}
    assert third.guests.tolist() == [1]


def test_a_run_goes_on_in_other_shards_than_it_began_in():
    config = settings("sgp")
    coordinator, fleet = sharded(config, EVEN)
    _, half = played(coordinator, fleet, rounds=2)
    snapshot = {name: array.copy() for name, array in fleet.snapshot().items()}
    _, other = sharded(config, UNEVEN)
    other.restore(snapshot)
    rest, _ = played(coordinator, other, state=half)
    reference, one = whole(config)
    assert_same_rounds(rest, played(reference, one)[0][2:], distance_error=DISTANCE_ERROR)
    assert_same_models(other, one)


def test_a_broken_model_is_refused_across_shards_as_within():
    config = settings("sgp")
    reports = []
    for coordinator, fleet in (sharded(config, EVEN), whole(config)):
        broken = {name: array.copy() for name, array in fleet.snapshot().items()}
        broken["4.params"][:] = np.nan
        fleet.restore(broken)
        plan = coordinator.plan(coordinator.start(np.zeros(9)))
        reports.append((fleet.run_round(plan), dict(fleet.refused), fleet.run_round(plan)))
    (mine, refused, again), (theirs, same, _) = reports
    assert [report.senders.tolist() for report in mine.servers] == [
        report.senders.tolist() for report in theirs.servers
    ]
    assert all(4 not in report.senders for i, report in enumerate(mine.servers) if i != 4)
    assert refused == same
    assert refused["not-finite"] > 0
    assert again is mine  # asked for the same round once more


def test_shards_are_blocks_of_nearly_the_same_size():
    assert even_bounds(200, 4) == (0, 50, 100, 150, 200)
    assert even_bounds(3, 3) == (0, 1, 2, 3)
