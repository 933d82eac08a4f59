"""Tasks without class labels: stacked servers train, judge, merge and measure as those with mailboxes do."""

import numpy as np
import pytest
import torch
from tests.alone import run_alone

from hatdfed.data.own.arrays import OwnArrays
from hatdfed.data.own.dataset import make_own_dataset
from hatdfed.setup.build.placement import Placement
from hatdfed.setup.build.simulation import make_batch
from hatdfed.setup.layers import resolve

RNG = np.random.default_rng(0)
TABLE = RNG.normal(size=(200, 6))
CAUSES = TABLE @ RNG.normal(size=(6, 3))
DATA = {
    "regression": OwnArrays(TABLE, 50 + 9 * CAUSES[:, :2]),
    "multi-label": OwnArrays(TABLE, (CAUSES > 1).astype(int)),
    "next-token": OwnArrays((RNG.integers(7, size=(200, 1)) + np.arange(9)) % 7),
}
NETWORKS = {"regression": "mlp", "multi-label": "mlp", "next-token": "lstm"}


def play(task, method, fleet):
    dataset = make_own_dataset(DATA[task])
    sizes = {"servers": 4, "rounds": 4, "images_per_server": 40, "validation_images": 20, "samples_per_round": 20}
    # The data set of the settings is not used: only what it brings by default.
    config = resolve({"method": method, "dataset": "synthetic", "network": NETWORKS[task], **sizes})
    (run,) = make_batch([config], dataset, Placement(fleet, "cpu"), names=["run"]).simulations
    records = []
    run_alone(run.coordinator, run.fleet, rounds=4, sinks=[lambda _, record: records.append(record)])
    return run.fleet, records


@pytest.mark.parametrize("method", ["hat-dfed", "hat-dfed-plus", "hat-dfed-trust", "sgp"])
@pytest.mark.parametrize("task", DATA)
def test_stacked_servers_play_the_rounds_of_mailboxes(task, method):
    (stacked, mine), (boxes, theirs) = (play(task, method, fleet) for fleet in ("stacked", "mailbox"))
    assert stacked.computed_by["kernels"] in ("lifted", "looped")
    for one, other in zip(mine, theirs, strict=True):
        assert one.draw.topology == other.draw.topology
        np.testing.assert_allclose(one.report.accuracy, other.report.accuracy, atol=1e-5)
        for server, same in zip(one.report.servers, other.report.servers, strict=True):
            np.testing.assert_allclose(server.importance, same.importance, atol=1e-5)
            assert server.scores.keys() == same.scores.keys()
            for name in server.scores:
                np.testing.assert_allclose(server.scores[name], same.scores[name], atol=1e-3)
    torch.testing.assert_close(stacked.models, boxes.models, rtol=0, atol=1e-4)


@pytest.mark.parametrize("task", DATA)
def test_stacked_servers_are_measured_as_those_with_mailboxes(task):
    (stacked, _), (boxes, _) = (play(task, "full", fleet) for fleet in ("stacked", "mailbox"))
    mine, theirs = stacked.final_accuracy(), boxes.final_accuracy()
    np.testing.assert_allclose(mine.overall, theirs.overall, atol=1e-5)
    assert np.isnan(mine.personal).all()
    assert np.isnan(theirs.personal).all()
    assert mine.metrics.keys() == theirs.metrics.keys() != set()
    for name in mine.metrics:
        np.testing.assert_allclose(mine.metrics[name], theirs.metrics[name], rtol=1e-4)
