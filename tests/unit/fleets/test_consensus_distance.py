"""How far the models are from their mean, as every fleet in one process tells it, held against the models."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from tests.alone import mailbox_simulation

import hatdfed
from hatdfed.core.links import LinkTable, Topology
from hatdfed.core.policies.base import certain
from hatdfed.core.round import SKETCH_SIZE, RoundPlan
from hatdfed.data.datasets import load_dataset
from hatdfed.fleets.sharded.fleet import LocalShards, ShardedFleet
from hatdfed.fleets.stacked.fleet import StackedFleet
from hatdfed.fleets.stacked.rows import Execution, RunServers
from hatdfed.server.learner import Learner
from hatdfed.setup.build.program import initial_seed, make_actors
from hatdfed.setup.build.ray_shards import make_shard
from hatdfed.setup.build.world import make_pools, make_worlds
from hatdfed.setup.layers import resolve

DATASET = load_dataset("synthetic", options={"train": 600, "validation": 100, "test": 60})
POOLS = make_pools(DATASET)
CPU = Execution(torch.device("cpu"), 4, 5)


def settings(servers=4, method="rnd", **more):
    fixed = {"dataset": "synthetic", "network": "small-cnn", "validation_images": 50, "images_per_server": 60}
    return resolve({"method": method, "servers": servers, **fixed, **more})


def plan_for(num_servers, links, t=0):
    considered = LinkTable.all_of(num_servers)
    return RoundPlan(t, certain(considered, considered.from_dense(Topology.from_pairs(num_servers, links).links)))


def by_numpy(models):
    models = models.double().numpy()
    mean = models.mean(axis=0)
    return np.linalg.norm(models - mean, axis=1).mean() / np.linalg.norm(mean)


def member(config, world):
    coordinator, program = make_actors(config, DATASET)
    seeds = [initial_seed(config, i) for i in range(config.servers)]
    return RunServers(program, world.sources, coordinator.prices, seeds, world.test)


@pytest.mark.parametrize("method", ["rnd", "sgp"])  # under push-sum it is about the models that are evaluated
def test_mailboxes_tell_it_exactly(method):
    fleet = mailbox_simulation(settings(method=method), DATASET).fleet
    for t, links in enumerate([[(0, 1), (0, 2)], [(1, 0), (3, 2)]]):
        report = fleet.run_round(plan_for(4, links, t))
        assert report.consensus_distance == pytest.approx(by_numpy(fleet.models), rel=1e-5)


def test_stacked_runs_of_any_size_tell_each_its_own_exactly():
    configs = [settings(servers=3), settings(servers=3, seed=1), settings(servers=5), settings(servers=3, seed=2)]
    fleet = StackedFleet(list(map(member, configs, make_worlds(configs, DATASET))), CPU)
    plans = {run: plan_for(config.servers, [(0, 1), (1, 2)]) for run, config in enumerate(configs)}
    for playing in ([0, 1, 2, 3], [0, 1, 3], [2]):  # all of them, some of them, and one
        reports = fleet.run_rounds({run: plans[run] for run in playing})
        told = [reports[run].consensus_distance for run in playing]
        assert told == pytest.approx([by_numpy(fleet.fleets[run].models) for run in playing], rel=1e-5)


def test_shards_tell_it_nearly_and_move_no_model_for_it():
    config = settings(servers=6)
    bounds = (0, 2, 6)
    coordinator, _ = make_actors(config, DATASET)
    shards = [make_shard(config, DATASET, first, last, "cpu") for first, last in pairwise(bounds)]
    fleet = ShardedFleet(LocalShards(shards, bounds), coordinator.prices, POOLS.test)
    report = fleet.run_round(plan_for(6, [(0, 1), (3, 4)]))  # no link between the shards
    models = torch.cat([torch.as_tensor(shard._run.models) for shard in shards])
    assert report.consensus_distance == pytest.approx(by_numpy(models), rel=3 / SKETCH_SIZE**0.5)
    assert fleet.posted_bytes == 0


@pytest.mark.parametrize("fleet", ["mailbox", "stacked"])
def test_models_that_are_no_numbers_have_no_distance(fleet, monkeypatch):
    monkeypatch.setattr(Learner, "init", lambda self, seed: torch.full((self.num_params,), torch.nan))
    few = {"dataset": "synthetic", "network": "linear", "servers": 2, "rounds": 1, "images_per_server": 60}
    result = hatdfed.run(method="rnd", fleet=fleet, **few)
    assert result.rounds[-1]["consensus_distance"] is None
    assert result.summary["consensus_distance"] is None
