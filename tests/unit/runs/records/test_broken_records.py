"""Records and results that somebody damaged end in one sentence."""

import shutil
import sqlite3
from contextlib import closing

import numpy as np
import pytest
from tests.small_runs import SMALL

from hatdfed.cli.tables import COLUMNS, make_summary_table
from hatdfed.core.fleet import FinalAccuracy
from hatdfed.errors import RunFolderError
from hatdfed.runs.calls import resume, run
from hatdfed.runs.records.database import RunDatabase
from hatdfed.runs.summary import summarise
from hatdfed.setup.layers import resolve


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    return run(resolve({**SMALL, "method": "rnd"}), out=tmp_path_factory.mktemp("runs") / "run")


@pytest.fixture
def folder(played, tmp_path):
    return shutil.copytree(played.folder, tmp_path / "run")


def _damage(folder, *statements):
    with closing(sqlite3.connect(folder / "run.sqlite")) as database, database:
        for statement in statements:
            database.execute(statement)


@pytest.mark.parametrize(
    ("statement", "sentence"),
    [
        ("ALTER TABLE rounds DROP COLUMN link_joules", "rounds has no link_joules"),
        ("UPDATE rounds SET link_joules = NULL WHERE t = 1", "link_joules of round 1 is not a number"),
        ("UPDATE rounds SET seconds = 'x' WHERE t = 2", "seconds of round 2 is not a number"),
        ("UPDATE rounds SET avg_accuracy = 'x' WHERE t = 2", "avg_accuracy of round 2 is not a number"),
    ],
)
def test_rounds_that_were_damaged_are_named(folder, statement, sentence):
    _damage(folder, statement)
    with pytest.raises(RunFolderError, match=sentence):
        resume(folder)


def test_other_tables_lack_no_column_either(folder):
    _damage(folder, "ALTER TABLE ledger DROP COLUMN joules")
    with (
        closing(RunDatabase(folder / "run.sqlite", read_only=True)) as database,
        pytest.raises(RunFolderError, match="ledger has no joules"),
    ):
        database.records("ledger")


@pytest.mark.parametrize("blob", ["NULL", "x''", "x'00'", "x'0000000000000000'", "'text'"])
def test_probabilities_that_are_cut_short_are_refused(folder, blob):
    _damage(folder, f"UPDATE matrices SET propensity = {blob}")  # noqa: S608 (our own values)
    with (
        closing(RunDatabase(folder / "run.sqlite", read_only=True)) as database,
        pytest.raises(RunFolderError, match="cut short"),
    ):
        database.last_propensity()


def test_a_round_with_nobody_there_has_no_accuracy(played):
    servers = played.config.servers
    accuracy = sum(server["accuracy"] for server in played.servers[-servers:]) / servers
    rounds = [{**row, "avg_accuracy": None} for row in played.rounds[:-1]] + [played.rounds[-1]]
    ones = np.ones(servers)
    assert summarise(played.config, FinalAccuracy(ones, ones, ones), rounds)["best_round_accuracy"] == pytest.approx(
        accuracy
    )
    assert summarise(played.config, FinalAccuracy(ones, ones, ones), rounds[:1])["best_round_accuracy"] is None


@pytest.mark.parametrize("value", [None, "3", "x", [1], {}, True, 10**400])
@pytest.mark.parametrize("key", [key for key, _ in COLUMNS])
def test_a_figure_that_is_no_number_is_named(played, key, value):
    with pytest.raises(RunFolderError, match=f"{key} is not a number"):
        make_summary_table([{**played.summary, key: value}], title="")


def test_a_figure_that_is_missing_is_named():
    with pytest.raises(RunFolderError, match="std_accuracy is missing"):
        make_summary_table([{"avg_accuracy": 3}], title="")
