"""Beliefs in the database of a run: kept with its rounds, and continued by a run that goes on."""

import json
import sqlite3
from contextlib import closing
from itertools import chain

import numpy as np
import pytest
from tests.small_runs import SMALL
from typer.testing import CliRunner

import hatdfed
from hatdfed.cli.app import app
from hatdfed.runs.records.database import RunDatabase
from hatdfed.runs.records.schema import TRUST
from hatdfed.runs.trust_history import summarise_groups
from hatdfed.runs.trust_log import TrustChange

SETTINGS = {
    **SMALL,
    "method": "hat-dfed-trust",
    "servers": 4,
    "rounds": 12,
    "checkpoint_every": 3,
    "policy": {"latest": 0.2, "quiet": 1},
}


def rows_of(folder, table):
    with closing(sqlite3.connect(folder / "run.sqlite")) as database:
        return database.execute(f"SELECT * FROM {table} ORDER BY t, rowid").fetchall()  # noqa: S608


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    return hatdfed.run(**SETTINGS, out=tmp_path_factory.mktemp("trust") / "run")


def test_the_table_is_written_as_its_rows_are():
    assert tuple(TRUST.columns) == TrustChange._fields


def test_a_run_keeps_every_change_and_its_verdicts(played):
    rows = rows_of(played.folder, "trust")
    assert [row[1:5] for row in rows[:4]] == [(server, "waiting", None, "start") for server in range(4)]
    assert {row[4] for row in rows[4:8]} == {"introduced"}
    assert rows_of(played.folder, "verdicts")
    assert list(map(tuple, played.trust.changes)) == rows
    assert played.trust.verdicts.shape == (4, 4)
    assert np.isnan(np.diagonal(played.trust.verdicts)).all()


def test_results_have_the_groups(played):
    found = summarise_groups(played.trust.changes)
    assert found.items() <= played.summary.items()
    assert sorted(chain(*found["groups"], found["alone"], found["waiting"])) == list(range(4))


def test_a_run_that_goes_on_keeps_the_same_as_one_that_never_stopped(played, tmp_path, monkeypatch):
    class StopError(Exception):
        pass

    def stop(_, record):
        if record.t == 7:  # behind the checkpoint after round 5
            raise StopError

    with pytest.raises(StopError):
        hatdfed.run(**SETTINGS, out=tmp_path / "run", on_round=stop)
    resumed = hatdfed.resume(tmp_path / "run")
    for table in ("trust", "verdicts"):
        assert rows_of(resumed.folder, table) == rows_of(played.folder, table)
    assert resumed.summary["groups"] == played.summary["groups"]


def test_a_method_that_does_not_learn_whom_to_hear_keeps_nothing(tmp_path):
    result = hatdfed.run(**SMALL, method="rnd", out=tmp_path / "run")
    assert result.trust is None
    assert "groups" not in result.summary
    assert rows_of(result.folder, "trust") == rows_of(result.folder, "verdicts") == []
    assert "Groups" not in CliRunner().invoke(app, ["show", str(result.folder)]).stdout


def test_show_says_which_groups_were_found(played):
    text = CliRunner().invoke(app, ["show", str(played.folder)]).stdout
    assert "Groups found: " in text
    assert "last changed in round" in text
    content = json.loads(CliRunner().invoke(app, ["show", "--json", str(played.folder)]).stdout)
    for name in ("groups", "alone", "waiting", "groups_since"):
        assert content[name] == played.summary[name]


def test_show_says_it_of_an_unfinished_run_as_well(played, tmp_path):
    def stop(_, record):
        if record.t == 4:
            raise RuntimeError

    with pytest.raises(RuntimeError):
        hatdfed.run(**SETTINGS, out=tmp_path / "run", on_round=stop)
    assert "Groups found: " in CliRunner().invoke(app, ["show", str(tmp_path / "run")]).stdout
    content = json.loads(CliRunner().invoke(app, ["show", "--json", str(tmp_path / "run")]).stdout)
    assert content["finished"] is False
    assert isinstance(content["groups"], list)


def test_verdicts_that_are_cut_short_are_none(tmp_path):
    with closing(RunDatabase(tmp_path / "run.sqlite")) as database:
        assert database.last_verdicts() is None
    with closing(sqlite3.connect(tmp_path / "run.sqlite")) as file, file:
        file.execute("INSERT INTO verdicts VALUES (0, ?)", (b"12345",))
    with closing(RunDatabase(tmp_path / "run.sqlite", read_only=True)) as database:
        assert database.last_verdicts() is None
