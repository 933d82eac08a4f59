"""Real connections: how far the models are from their mean, estimated from what edges tell, and never from models."""

import math

import numpy as np
import pytest
import torch
from tests.deploy.deployment import Deployment, settings

import hatdfed.deploy.edge.round_runner as round_runner
from hatdfed.core.links import LinkTable
from hatdfed.core.policies.base import certain
from hatdfed.core.round import SKETCH_SIZE, RoundPlan
from hatdfed.deploy.coordinator.open_round import OpenRound
from hatdfed.deploy.protocol import hatdfed_pb2 as pb
from hatdfed.setup.build.coordinator import make_prices

COLUMN = "consensus_distance"


async def deployed(folder, config):
    async with Deployment(folder, config, secure=False) as deployment:
        edges = await deployment.start_edges(config.servers)
        summary = await deployment.run
        models = torch.stack([edge._handler.runner.server.params for edge in edges])
        rounds = deployment.process.folder.read().records("rounds")
        return models.double().numpy(), rounds, deployment.status, summary


@pytest.mark.parametrize(("method", "servers"), [("hat-dfed", 3), ("sgp", 4)])
def test_the_coordinator_estimates_it_from_sketches(play, tmp_path, one_thread, method, servers):
    models, rounds, status, summary = play(deployed(tmp_path, settings(method, servers=servers)))
    mean = models.mean(axis=0)
    exact = np.linalg.norm(models - mean, axis=1).mean() / np.linalg.norm(mean)
    assert exact > 1e-4
    assert rounds[-1][COLUMN] == pytest.approx(exact, rel=3 / SKETCH_SIZE**0.5)
    assert all(row[COLUMN] > 0 for row in rounds)
    assert status["figures"][COLUMN] == summary[COLUMN] == rounds[-1][COLUMN]


def test_it_is_unknown_while_edges_of_an_older_version_tell_no_sketch(play, tmp_path, one_thread, monkeypatch):
    monkeypatch.setattr(round_runner, "sketch", lambda models: torch.zeros(1, 0))
    _, rounds, status, summary = play(deployed(tmp_path, settings("rnd", rounds=2)))
    assert [row[COLUMN] for row in rounds] == [None, None]
    assert (status["figures"][COLUMN], summary[COLUMN]) == (None, None)
    assert rounds[-1]["avg_accuracy"] is not None


GOOD = [1.0] * SKETCH_SIZE


@pytest.mark.parametrize(
    "sketch", [[], GOOD[:-1], [*GOOD, 1.0], [math.nan, *GOOD[1:]], [math.inf, *GOOD[1:]]], ids=range(5)
)
def test_what_is_no_sketch_counts_as_none_and_the_report_is_taken_all_the_same(sketch):
    assert closed(sketch) is None


def test_sketches_that_are_some_give_a_distance():
    assert closed([3.0, *GOOD[1:]]) == pytest.approx(1 / math.sqrt(SKETCH_SIZE + 3))


def closed(second):
    """Two servers without links; the first tells a good sketch."""
    hall, links = OpenRound(), LinkTable.all_of(2)
    plan = RoundPlan(0, certain(links, np.zeros(len(links), dtype=bool)))
    hall.open(plan, {0, 1}, make_prices(settings(servers=2), bits_per_sample=8, num_params=10))
    for server, sketch in enumerate((GOOD, second)):
        own = [pb.Slot(server=server, importance=1.0)]
        outcome = pb.Outcome(round=0, accuracy=0.5, num_samples=3, devices_online=1, slots=own, sketch=sketch)
        assert hall.take(server, outcome).accepted
    report = hall.close()
    assert report.reported.all()
    return report.consensus_distance
