"""Personal and frozen parameters: all fleets send, judge, merge and keep the same."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from tests.alone import mailbox_simulation, run_alone
from tests.parity.same_rounds import assert_same_rounds
from torch import nn

from hatdfed.core.energy.energy_model import Cause
from hatdfed.core.round import SKETCH_SIZE
from hatdfed.data.datasets import load_dataset
from hatdfed.errors import RunFolderError
from hatdfed.fleets.sharded.fleet import LocalShards, ShardedFleet
from hatdfed.server.lora import lora
from hatdfed.server.networks import NETWORKS
from hatdfed.server.parameter_roles import digest_tensors
from hatdfed.setup.build.placement import Placement
from hatdfed.setup.build.program import make_actors
from hatdfed.setup.build.ray_shards import make_shard
from hatdfed.setup.build.simulation import make_batch
from hatdfed.setup.build.world import make_world
from hatdfed.setup.layers import resolve

DATASET = load_dataset("synthetic", options={"train": 800, "validation": 150, "test": 60})
PERSONAL = {"personal": ["11.*", "*.running_*"]}
FROZEN = {"frozen": ["0.*", "1.*"], "personal": ["11.*"]}
ROUNDS = 3


def settings(method="hat-dfed", **more):
    fixed = {"dataset": "synthetic", "network": "small-cnn", "servers": 6, "rounds": ROUNDS, "validation_images": 100}
    return resolve({"method": method, **fixed, "device_online_probability": 0.1, "parameters": PERSONAL, **more})


def stacked(config):
    (simulation,) = make_batch([config], DATASET, Placement("stacked", "cpu"), names=[""]).simulations
    return simulation


def sharded(config, bounds=(0, 1, 4, 6)):
    coordinator, _ = make_actors(config, DATASET)
    shards = [make_shard(config, DATASET, first, last, "cpu") for first, last in pairwise(bounds)]
    return coordinator, ShardedFleet(LocalShards(shards, bounds), coordinator.prices, make_world(config, DATASET).test)


def played(coordinator, fleet, rounds=ROUNDS, **more):
    records = []
    state = run_alone(coordinator, fleet, rounds=rounds, sinks=[lambda _, record: records.append(record)], **more)
    return records, state


def assert_same_servers(fleet, other, tolerance=2e-4):
    mine, theirs = fleet.snapshot(), other.snapshot()
    assert mine.keys() == theirs.keys()
    for name in mine:
        np.testing.assert_allclose(mine[name], theirs[name], atol=tolerance, err_msg=name)


@pytest.mark.parametrize("method", ["hat-dfed", "sgp", "morph", "dac", "hat-dfed-trust"])
def test_the_stacked_fleet_plays_the_rounds_of_mailboxes(method):
    config = settings(method, codec="float32")
    fast, slow = stacked(config), mailbox_simulation(config, DATASET)
    assert fast.fleet.num_params == slow.fleet.num_params < slow.fleet.models.shape[1]
    assert_same_rounds(played(*fast)[0], played(*slow)[0], tolerance=2e-5)
    assert_same_servers(fast.fleet, slow.fleet)
    np.testing.assert_array_equal(fast.fleet.final_accuracy()[0], slow.fleet.final_accuracy()[0])


@pytest.mark.parametrize(
    "more", [{"codec": "float16", "rounds": 1}, {"aggregator": {"name": "median"}}, {"world": {"liars": 0.34}}]
)
def test_and_so_with_codecs_robust_rules_and_liars(more):
    config = settings(**more)
    fast, slow = stacked(config), mailbox_simulation(config, DATASET)
    assert_same_rounds(played(*fast, config.rounds)[0], played(*slow, config.rounds)[0], tolerance=1e-3)
    assert_same_servers(fast.fleet, slow.fleet, 1e-3)


@pytest.mark.parametrize("codec", ["float32", "int8"])
def test_shards_play_the_rounds_of_one_fleet(codec):
    config = settings(codec=codec)
    (coordinator, parts), one = sharded(config), stacked(config)
    mine, theirs = played(coordinator, parts)[0], played(*one)[0]
    assert_same_rounds(mine, theirs, tolerance=2e-5, distance_error=3 / SKETCH_SIZE**0.5)
    assert_same_servers(parts, one.fleet)
    assert parts.num_params == one.fleet.num_params


def test_runs_of_one_fleet_keep_their_personal_parts_while_others_play():
    configs = [settings(), settings(seed=1)]
    batch = make_batch(configs, DATASET, Placement("stacked", "cpu"), names=["", ""])
    alone = stacked(configs[0])
    played(*batch.simulations[0])
    played(*batch.simulations[1])
    played(*alone)
    assert_same_servers(batch.fleets.fleets[0], alone.fleet)


@pytest.mark.parametrize("parameters", [PERSONAL, FROZEN])
def test_a_run_goes_on_from_its_snapshot_bit_for_bit(parameters):
    config = settings(parameters=parameters)
    whole, first, second = (mailbox_simulation(config, DATASET) for _ in range(3))
    played(*whole)
    _, state = played(*first, rounds=2)
    second.fleet.restore(first.fleet.snapshot())
    played(*second, state=state)
    assert torch.equal(second.fleet.models, whole.fleet.models)


def test_a_run_does_not_go_on_with_other_frozen_values():
    config = settings(parameters=FROZEN)
    first, second = (mailbox_simulation(config, DATASET) for _ in range(2))
    second.fleet._program.learner.frozen["0.weight"].add_(1)
    with pytest.raises(RunFolderError, match="frozen parameters of the network are not those"):
        second.fleet.restore(first.fleet.snapshot())


def test_a_run_can_change_fleets_in_the_middle():
    config = settings()
    slow, fast, whole = mailbox_simulation(config, DATASET), stacked(config), stacked(config)
    played(*whole)
    _, state = played(*slow, rounds=2)
    fast.fleet.restore(slow.fleet.snapshot())
    played(*fast, state=state)
    torch.testing.assert_close(fast.fleet.models, whole.fleet.models, atol=2e-5, rtol=0)


def test_servers_have_personal_parts_of_their_own_and_come_closer_in_the_rest():
    simulation = mailbox_simulation(settings("full", device_online_probability=1.0), DATASET)
    played(*simulation)
    sent = simulation.fleet._program.learner.sent
    shared, heads = sent.take(simulation.fleet.models), simulation.fleet.models[:, : sent.start]
    torch.testing.assert_close(shared[0], shared[1], atol=1e-5, rtol=0)
    assert not torch.allclose(heads[0], heads[1], atol=1e-2)


def test_a_link_is_paid_for_what_is_sent():
    whole, part = (mailbox_simulation(settings("full", parameters=p), DATASET) for p in ({}, PERSONAL))
    records = [played(*each)[0] for each in (whole, part)]
    joules = [
        sum(row.joules for record in those for row in record.report.energy if row.cause is Cause.LINK)
        for those in records
    ]
    assert joules[1] / joules[0] == pytest.approx(part.fleet.num_params / whole.fleet.num_params)
    assert part.coordinator.prices.model_bits == 32 * part.fleet.num_params


def test_the_papers_figure_is_for_whole_models():
    assert resolve({"dataset": "fashion-mnist"}).energy.model_bits != "actual"
    assert resolve({"dataset": "fashion-mnist", "parameters": {"frozen": ["0.*"]}}).energy.model_bits == "actual"


@pytest.mark.parametrize("method", ["hat-dfed", "morph"])
def test_networks_with_frozen_parts_are_played_without_kernels_of_their_own(method):
    config = settings(method, parameters=FROZEN)
    fast, slow = stacked(config), mailbox_simulation(config, DATASET)
    assert fast.fleet.computed_by["kernels"] == "lifted"
    assert_same_rounds(played(*fast)[0], played(*slow)[0], tolerance=2e-5)
    assert_same_servers(fast.fleet, slow.fleet)


def adapted(shape, num_outputs):
    """Adapters, a shared layer and a personal one, small enough to be lifted on a CPU."""
    size = shape[0] * shape[1] * shape[2]
    layers = (nn.Linear(size, 12), nn.Tanh(), nn.Linear(12, 12), nn.Dropout(0.2), nn.Linear(12, num_outputs))
    return lora(nn.Sequential(nn.Flatten(), *layers), rank=2, trained=["3.*", "5.*"])


@pytest.mark.parametrize("codec", ["float32", "float16"])
def test_adapters_are_lifted_over_servers(monkeypatch, codec):
    monkeypatch.setitem(NETWORKS.built_in, "adapted", adapted)
    config = settings(network="adapted", parameters={"personal": ["5.*"]}, codec=codec, rounds=2)
    fast, slow = stacked(config), mailbox_simulation(config, DATASET)
    assert fast.fleet.computed_by["kernels"] == "lifted"
    frozen = fast.fleet.fleet.rows.model.learner.frozen
    before = digest_tensors(frozen)
    assert_same_rounds(played(*fast, rounds=2)[0], played(*slow, rounds=2)[0], tolerance=1e-4)
    assert_same_servers(fast.fleet, slow.fleet, 1e-3)
    assert digest_tensors(frozen) == before
    held = [dict(m.named_parameters())["1.base.weight"] for m in lifted_modules(fast.fleet.fleet.rows.model)]
    assert len({tensor.data_ptr() for tensor in held}) == 1, "in memory once"


def lifted_modules(model):
    return model._train_module, model._eval_module, model.learner.module
