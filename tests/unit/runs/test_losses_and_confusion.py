"""Losses of rounds and servers, accuracy by class and confusions: in records, results, words and pictures."""

import json

import matplotlib as mpl
import numpy as np
import pytest
import torch
from tests.small_runs import SMALL
from typer.testing import CliRunner

import hatdfed
from hatdfed.cli.app import app
from hatdfed.data.datasets import load_dataset
from hatdfed.data.standardise import standardise_inputs
from hatdfed.errors import RunFolderError
from hatdfed.report.run_data import run_data
from hatdfed.report.run_figures import draw_run_figures
from hatdfed.runs.confusion import format_by_class, read_confusion, summarise_confusion

mpl.use("Agg")
SETTINGS = {**SMALL, "method": "rnd", "validation_images": 60}  # all that there are


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    folder = tmp_path_factory.mktemp("losses")
    return {fleet: hatdfed.run(SETTINGS, fleet=fleet, out=folder / fleet) for fleet in ("mailbox", "stacked")}


def test_both_fleets_record_the_same_losses(played):
    for table in ("rounds", "servers"):
        for name in ("training_loss", "validation_loss"):
            mailbox, stacked = ([row[name] for row in getattr(played[fleet], table)] for fleet in played)
            assert None not in mailbox
            assert stacked == pytest.approx(mailbox, rel=1e-4)


def test_the_losses_of_a_round_are_the_means_of_its_servers(played):
    result = played["stacked"]
    for row in result.rounds:
        mine = [server for server in result.servers if server["t"] == row["t"]]
        for name in ("training_loss", "validation_loss"):
            assert row[name] == pytest.approx(np.mean([server[name] for server in mine]))
    assert result.summary["validation_loss"] == result.rounds[-1]["validation_loss"]


def test_the_validation_loss_is_the_cross_entropy_of_the_last_models(played):
    config = played["mailbox"].config
    dataset = load_dataset(config.dataset, options=config.dataset_options)
    x, y = standardise_inputs(dataset.validation.x, dataset.format), torch.tensor(dataset.validation.y.tolist())
    for result in played.values():
        told = [row["validation_loss"] for row in result.servers if row["t"] == config.rounds - 1]
        with torch.no_grad():
            losses = [float(torch.nn.functional.cross_entropy(model(x), y)) for model in result.models()]
        assert told == pytest.approx(losses, rel=1e-5)


def test_a_server_that_rests_has_no_training_loss():
    result = hatdfed.run({**SETTINGS, "training": {"name": "every", "rounds": 2}}, fleet="stacked")
    by_round = {}
    for row in result.servers:
        by_round.setdefault(row["t"], set()).add(row["training_loss"] is None)
    assert {True} in by_round.values()
    assert {False} in by_round.values()


def test_private_training_tells_no_training_loss():
    result = hatdfed.run({**SETTINGS, "privacy": {"clip": 1.0}, "rounds": 1})
    assert result.rounds[0]["training_loss"] is None
    assert result.rounds[0]["validation_loss"] > 0


def test_confusions_add_up_to_the_test_samples_of_all_servers_and_to_the_accuracy(played):
    for result in played.values():
        matrix = np.array(result.summary["confusion_matrix"])
        samples = result.config.dataset_options["test"] * result.config.servers
        assert matrix.sum() == samples
        assert 100 * np.trace(matrix) / samples == pytest.approx(result.summary["avg_accuracy"])
        shares = [100 * row[label] / row.sum() for label, row in enumerate(matrix)]
        assert result.summary["accuracy_by_class"] == pytest.approx(shares)
    assert played["mailbox"].summary["confusion_matrix"] == played["stacked"].summary["confusion_matrix"]


def test_the_row_of_the_confusion_matrix_is_the_true_class(played):
    result = played["mailbox"]
    test = load_dataset(result.config.dataset, options=result.config.dataset_options).test
    wanted = np.zeros((10, 10), dtype=int)
    for server in range(result.config.servers):
        np.add.at(wanted, (test.y, result.predict(test.x, server=server)), 1)
    assert result.summary["confusion_matrix"] == wanted.tolist()


def test_a_task_without_classes_has_neither(played):
    x = np.random.default_rng(0).normal(size=(80, 3)).astype(np.float32)
    result = hatdfed.run(
        "rnd", dataset=(x, x.sum(axis=1)), task="regression", network="linear", servers=2, rounds=1, devices=4
    )
    assert result.summary["confusion_matrix"] is None
    assert result.summary["accuracy_by_class"] is None
    assert result.rounds[0]["validation_loss"] > 0
    with pytest.raises(RunFolderError, match="no confusion matrix"):
        result.plot.confusion()


def test_show_prints_the_accuracy_of_each_class(played):
    folder, shares = played["stacked"].folder, played["stacked"].summary["accuracy_by_class"]
    words = CliRunner().invoke(app, ["show", str(folder)]).stdout
    assert f"Test accuracy by class: 0: {shares[0]:.1f} %, 1: {shares[1]:.1f} %" in words
    told = json.loads(CliRunner().invoke(app, ["show", str(folder), "--json"]).stdout)
    assert told["accuracy_by_class"] == shares
    assert told["last_round"]["training_loss"] > 0


def test_plots_show_losses_and_confusions(played):
    result = played["stacked"]
    lines = result.plot.loss().get_lines()
    assert [line.get_label() for line in lines] == ["training loss", "validation loss"]
    assert lines[1].get_ydata().tolist() == [row["validation_loss"] for row in result.rounds]
    axes = result.plot.confusion()
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("Predicted class", "True class")
    drawn = draw_run_figures(run_data(result))
    assert "confusion" in drawn


def test_of_many_classes_the_worst_are_named():
    shares = summarise_confusion(np.diag(np.arange(30)) + 1)["accuracy_by_class"]
    words = format_by_class({"accuracy_by_class": shares})
    assert words.startswith("Worst of 30 classes: 0: 3.3 %, 1: ")
    assert words.count("%") == 5


def test_a_class_without_test_samples_has_no_accuracy():
    found = summarise_confusion(np.array([[3, 1], [0, 0]]))
    assert found == {"accuracy_by_class": [75.0, None], "confusion_matrix": [[3, 1], [0, 0]]}


@pytest.mark.parametrize("table", [None, [], "x", [[1, 2]], [[1, "2"], [3, 4]], [[1, -1], [0, 0]], [[0.5]], [[True]]])
def test_what_is_no_table_of_counts_is_not_read(table):
    assert read_confusion({"confusion_matrix": table}) is None
