"""Databases of older versions are read and brought up to date; those of newer ones are left alone."""

import json
import shutil
import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import pytest
from tests.small_runs import SMALL
from typer.testing import CliRunner

import hatdfed
from hatdfed.cli.app import app
from hatdfed.core.energy.energy_model import EnergyRow
from hatdfed.errors import RunFolderError
from hatdfed.runs.records.database import RunDatabase
from hatdfed.runs.records.reading import reading
from hatdfed.runs.records.schema import LEDGER, TABLES, current_version

OLD = Path(__file__).resolve().parents[3] / "fixtures" / "v0.1.0"
NEW_COLUMN = "consensus_distance"


@pytest.fixture
def old(tmp_path):
    """A folder that 0.1.0 left behind in the middle of a run."""
    return shutil.copytree(OLD / "run-stopped", tmp_path / "old")


@pytest.fixture
def newer(tmp_path):
    """A folder of a version that is yet to come."""
    folder = hatdfed.run(**SMALL, method="rnd", out=tmp_path / "newer").folder
    with closing(sqlite3.connect(folder / "run.sqlite")) as database:
        database.execute(f"PRAGMA user_version = {current_version() + 1}")
    return folder


def asked(path, question):
    with closing(sqlite3.connect(path)) as database:
        return database.execute(question).fetchall()


def columns(path, table):
    return {row[1]: row[2] for row in asked(path, f"PRAGMA table_info({table})")}


def test_a_new_database_has_the_declared_columns_and_the_current_version(tmp_path):
    RunDatabase(tmp_path / "run.sqlite").close()
    assert asked(tmp_path / "run.sqlite", "PRAGMA user_version") == [(current_version(),)]
    for table in TABLES.values():
        declared = {column.name: column.sql for column in table.columns.values()}
        assert columns(tmp_path / "run.sqlite", table.name) == declared


@pytest.mark.parametrize("table", TABLES.values(), ids=list(TABLES))
def test_the_columns_of_version_0_are_those_of_0_1_0(table):
    """A column that is new has a version of its own, or older folders would be taken for damaged ones."""
    first = {column.name: column.sql for column in table.columns.values() if column.since == 0}
    assert columns(OLD / "run" / "run.sqlite", table.name) == first


def test_every_version_brings_something():
    versions = {column.since for table in TABLES.values() for column in table.columns.values()}
    assert versions == set(range(current_version() + 1))


def test_the_ledger_is_written_as_its_rows_are():
    assert tuple(LEDGER.columns) == EnergyRow._fields


def test_an_old_database_is_read_as_it_is(old):
    before = (old / "run.sqlite").read_bytes()
    with closing(RunDatabase(old / "run.sqlite", read_only=True)) as database:
        rounds = database.records("rounds")
        assert database.records("trust") == []
        assert database.last_verdicts() is None
    assert {row[NEW_COLUMN] for row in rounds} == {None}
    assert len(rounds) == 17
    assert rounds[3]["links"] > 0
    with reading(old / "run.sqlite") as reader:
        assert reader.progress()[NEW_COLUMN] is None
        assert reader.progress()["rounds"] == 17
        assert [point[NEW_COLUMN] for point in reader.curves(0, 16, 8)] == [None] * 3
    assert (old / "run.sqlite").read_bytes() == before


def test_an_old_database_in_a_folder_that_is_read_only_is_read(old):
    old.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        with reading(old / "run.sqlite") as reader:
            assert reader.progress()[NEW_COLUMN] is None
    finally:
        old.chmod(stat.S_IRWXU)


def test_an_old_database_gets_the_new_columns_when_it_is_written_to_and_keeps_its_rows(old):
    rows = "SELECT * FROM {} ORDER BY rowid"
    first = [table.name for table in TABLES.values() if table.since == 0]
    before = {name: asked(old / "run.sqlite", rows.format(name)) for name in first}
    RunDatabase(old / "run.sqlite").close()
    assert asked(old / "run.sqlite", "PRAGMA user_version") == [(current_version(),)]
    for name, kept in before.items():
        new = sum(column.since > 0 for column in TABLES[name].columns.values())
        assert asked(old / "run.sqlite", rows.format(name)) == [(*row, *[None] * new) for row in kept]
    RunDatabase(old / "run.sqlite").close()  # and once more, for nothing


def test_a_run_of_0_1_0_that_goes_on_knows_the_distance_from_there_on(old):
    result = hatdfed.resume(old)
    known = [row["t"] for row in result.rounds if row[NEW_COLUMN] is not None]
    assert known == list(range(16, 24))  # from the checkpoint on, which is behind the records
    assert result.summary[NEW_COLUMN] == result.rounds[-1][NEW_COLUMN]


def test_a_table_that_lacks_a_column_of_its_own_version_is_still_damaged(old):
    RunDatabase(old / "run.sqlite").close()
    with closing(sqlite3.connect(old / "run.sqlite")) as database:
        database.execute(f"ALTER TABLE rounds DROP COLUMN {NEW_COLUMN}")
    with (
        closing(RunDatabase(old / "run.sqlite")) as database,
        pytest.raises(RunFolderError, match=f"has no {NEW_COLUMN}"),
    ):
        database.records("rounds")
    with pytest.raises(RunFolderError, match=f"has no {NEW_COLUMN}"), reading(old / "run.sqlite") as reader:
        reader.progress()


def test_a_newer_database_is_refused_in_one_sentence_and_not_touched(newer):
    path, sentence = newer / "run.sqlite", f"of version {current_version() + 1}.*Update hatdfed"
    before = path.read_bytes()
    for only_read in (True, False):
        with pytest.raises(RunFolderError, match=sentence):
            RunDatabase(path, read_only=only_read)
    with pytest.raises(RunFolderError, match=sentence), reading(path):
        pass
    with pytest.raises(RunFolderError, match=sentence):
        hatdfed.resume(newer, {"rounds": 9})
    assert path.read_bytes() == before


def test_show_says_unknown_for_what_an_old_run_does_not_have(old):
    shown = CliRunner().invoke(app, ["show", str(old)]).stdout
    assert "consensus distance unknown" in shown
    assert "17 of 24 rounds completed" in shown
    told = json.loads(CliRunner().invoke(app, ["show", str(old), "--json"]).stdout)
    assert told["last_round"][NEW_COLUMN] is None
    assert told["last_round"]["t"] == 16


def test_show_tells_the_distance_of_a_new_run(tmp_path):
    result = hatdfed.run(**SMALL, method="rnd", out=tmp_path / "run")
    distance = result.rounds[-1][NEW_COLUMN]
    assert f"consensus distance {distance:.3g}" in CliRunner().invoke(app, ["show", str(tmp_path / "run")]).stdout
    told = json.loads(CliRunner().invoke(app, ["show", str(tmp_path / "run"), "--json"]).stdout)
    assert told[NEW_COLUMN] == told["last_round"][NEW_COLUMN] == distance
