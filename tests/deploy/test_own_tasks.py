"""A deployment that learns a regression: as in a simulation, and from tables that edges have themselves."""

from functools import partial

import numpy as np
import pytest
import torch
from tests.alone import mailbox_simulation, run_alone
from tests.deploy.deployment import Deployment, settings

from hatdfed.data.datasets import load_dataset
from hatdfed.deploy.edge.setup import make_edge_setup
from hatdfed.errors import DataError
from hatdfed.setup.layers import resolve

RNG = np.random.default_rng(0)
X = RNG.normal(size=(150, 4)).astype(np.float32)
Y = X[:, 0] * 5 + 20


@pytest.fixture
def config(tmp_path):
    np.savez(tmp_path / "table.npz", x=X, y=Y)
    return resolve({"dataset": str(tmp_path / "table.npz"), "servers": 3, "rounds": 3, "method": "hat-dfed-plus"})


async def deployed(folder, config, **more):
    async with Deployment(folder, config) as deployment:
        edges = await deployment.start_edges(config.servers, **more)
        summary = await deployment.run
        handlers = sorted((edge._handler for edge in edges), key=lambda handler: handler.mailbox.index)
        return torch.stack([handler.runner.server.params for handler in handlers]), summary


def test_edges_learn_a_regression_as_simulated_servers_do(play, tmp_path, one_thread, config):
    simulation = mailbox_simulation(config, load_dataset(config.dataset, options=config.dataset_options))
    run_alone(simulation.coordinator, simulation.fleet, rounds=config.rounds)
    expected = simulation.fleet.final_accuracy()
    models, summary = play(deployed(tmp_path, config))
    torch.testing.assert_close(models, simulation.fleet.models, atol=1e-5, rtol=0)
    assert summary["personal_accuracy"] is None
    assert summary["metrics"]["rmse"] == pytest.approx(expected.metrics["rmse"].mean(), rel=1e-4)
    assert summary["metrics_by_server"].keys() == expected.metrics.keys()


def test_an_edge_with_labels_that_no_test_sample_has_has_no_personal_accuracy(play, tmp_path, one_thread):
    def without_labels(*args, **more):
        setup = make_edge_setup(*args, **more)
        return setup._replace(test=setup.test._replace(label_shares=np.zeros_like(setup.test.label_shares)))

    _, summary = play(deployed(tmp_path, settings("rnd", rounds=1, network="linear"), make_setup=without_labels))
    assert summary["personal_accuracy"] is None
    assert len(summary["accuracy_by_server"]) == 3


def test_edges_learn_from_tables_of_their_own(play, tmp_path, one_thread, config):
    np.savez(tmp_path / "mine.npz", x=X[:60], y=Y[:60])
    own = partial(make_edge_setup, own_data=str(tmp_path / "mine.npz"))
    _, summary = play(deployed(tmp_path, config, make_setup=own))
    assert summary["accuracy_from"] == "validation"
    assert summary["avg_accuracy"] > 50


@pytest.mark.parametrize(
    ("x", "y", "said"),
    [
        (X[:60, :3], Y[:60], r"samples are float32 of shape \[3\], float32 of shape \[4\] were wanted"),
        (X[:60], X[:60, :2], "y has 2 values a sample, 1 were wanted"),
        (X[:60] * np.nan, Y[:60], "NaN or infinite"),
        (X[:60], Y[:50], "x has 60 samples, but y has 50"),
        (X[:5], Y[:5], "at least 10 are needed"),
    ],
)
def test_own_tables_that_do_not_fit_the_run_are_refused(tmp_path, config, x, y, said):
    np.savez(tmp_path / "mine.npz", x=x, y=y)
    with pytest.raises(DataError, match=said):
        make_edge_setup(config, 0, own_data=str(tmp_path / "mine.npz"))


def test_a_folder_of_images_does_not_fit_a_table(tmp_path, config):
    with pytest.raises(DataError, match=r"is a folder, but the run is about samples of shape \[4\] for regression"):
        make_edge_setup(config, 0, own_data=str(tmp_path))


def test_token_ids_of_an_edge_need_no_targets(tmp_path):
    tokens = RNG.integers(6, size=(80, 9))
    np.savez(tmp_path / "text.npz", x=tokens)
    config = resolve({"dataset": str(tmp_path / "text.npz"), "network": "lstm", "servers": 3, "rounds": 2})
    work = make_edge_setup(config, 0, own_data=str(tmp_path / "text.npz")).source.work(0)
    assert work.batches[0].x.dtype == work.batches[0].y.dtype == torch.int64
    torch.testing.assert_close(work.batches[0].x[:, 1:], work.batches[0].y[:, :-1])
    assert work.label_counts is None
