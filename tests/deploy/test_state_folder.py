"""What coordinators and edges keep on their disks: alone, whole, and with room, or said in a sentence."""

import asyncio
import shutil
import sqlite3
import time
from contextlib import closing

import numpy as np
import pytest
import torch
from tests.alone import play_undisturbed
from tests.deploy.deployment import QUICK, Deployment, settings
from tests.deploy.gates import Gate

from hatdfed.deploy.coordinator.journal import Journal
from hatdfed.deploy.coordinator.process import CoordinatorOptions, CoordinatorProcess
from hatdfed.deploy.edge.store import EdgeStore, SavedState, set_aside_other_runs
from hatdfed.deploy.transport.endpoints import Endpoints
from hatdfed.errors import RunFolderError
from hatdfed.server.optimisers import OptimiserState
from hatdfed.server.program import ServerState


def process(folder, config=None):
    return CoordinatorProcess(config or settings(), QUICK, CoordinatorOptions(folder, "127.0.0.1:0", Endpoints(None)))


def test_a_second_coordinator_on_the_same_folder_is_refused(tmp_path):
    first = process(tmp_path / "run")
    with pytest.raises(RunFolderError, match="A coordinator already runs on"):
        process(tmp_path / "run")
    first._journal.close()
    process(tmp_path / "run")._journal.close()


def test_other_settings_on_the_same_folder_are_refused(tmp_path):
    process(tmp_path / "run")._journal.close()
    with pytest.raises(RunFolderError, match=r"holds a run that has seed 0, but 7 was asked for\. Give back the old"):
        process(tmp_path / "run", settings(seed=7))


def test_they_are_refused_also_where_the_old_ones_cannot_be_read_any_more(tmp_path):
    process(tmp_path / "run")._journal.close()
    (tmp_path / "run" / "config.yaml").unlink()
    with pytest.raises(RunFolderError, match="other settings"):
        process(tmp_path / "run", settings(seed=7))
    process(tmp_path / "run")._journal.close()


def test_a_run_that_is_given_more_rounds_keeps_the_horizon_that_it_was_begun_with(tmp_path):
    for rounds in (6, 9, 9):
        begun = process(tmp_path / "run", settings(rounds=rounds))
        begun._journal.close()
        assert (begun._config.horizon or begun._config.rounds) == 6
        assert begun.folder.config() == begun._config
    with pytest.raises(RunFolderError, match="has horizon 6, but 9 was asked for"):
        process(tmp_path / "run", settings(rounds=9, horizon=9))


async def short_run(folder):
    async with Deployment(folder, settings(), secure=False) as deployment:
        await deployment.start_edges(3)
        await deployment.run


@pytest.fixture(scope="module")
def ended_run(play, tmp_path_factory):
    """The folder of a run that has ended."""
    folder = tmp_path_factory.mktemp("ended")
    play(short_run(folder))
    return folder / "run"


@pytest.fixture
def journal(ended_run, tmp_path):
    """The journal of a copy of that run."""
    return shutil.copytree(ended_run, tmp_path / "run") / "journal.sqlite"


def damage(path, old, new):
    content = path.read_bytes()
    assert old in content
    path.write_bytes(content.replace(old, new, 1))


def test_a_journal_that_is_none_is_refused_by_name(journal):
    journal.write_bytes(b"no database" * 1000)
    with pytest.raises(RunFolderError, match=r"journal\.sqlite cannot be used \(file is not a database\)"):
        process(journal.parent)


def test_a_journal_with_torn_pages_is_refused_by_name(journal):
    content = bytearray(journal.read_bytes())
    content[4096:12288] = b"\0" * 8192
    journal.write_bytes(bytes(content))
    with pytest.raises(RunFolderError, match=r"journal\.sqlite cannot be used"):
        process(journal.parent)


def test_an_entry_of_the_journal_that_was_changed_is_noticed(journal):
    damage(journal, b'"dtype": "<f8"', b'"dtype": "<f4"')
    opened = Journal(journal)
    try:
        with pytest.raises(RunFolderError, match=r"journal\.sqlite cannot be used \(an entry is damaged\)"):
            _ = opened.read_links(), opened.read_state(None)
    finally:
        opened.close()


async def full_disk(folder, config):
    gate = Gate(1)
    async with Deployment(folder, config, secure=False) as deployment:
        await deployment.start_edges(3, make_setup=gate)
        await deployment.until(lambda: gate.is_reached(1))
        database = deployment.process._journal._db
        (pages,) = database.execute("PRAGMA page_count").fetchone()
        database.execute(f"PRAGMA max_page_count={pages}")
        gate.open()
        with pytest.raises(RunFolderError) as caught:
            await asyncio.wait_for(deployment.run, 20)
        assert not any(task.done() for task in deployment.tasks.values()), "the edges wait for the next start"
        await deployment.start_coordinator(deployment.port)
        summary = await asyncio.wait_for(deployment.run, 30)
        links = deployment.process.folder.read().records("links")
        return (
            str(caught.value),
            summary,
            [[(r["receiver"], r["sender"]) for r in links if r["t"] == t] for t in range(30)],
        )


def test_a_full_disk_under_the_journal_is_one_sentence_and_nothing_is_lost(play, tmp_path, one_thread, eager):
    config = settings(rounds=30)
    sentence, summary, links = play(full_disk(tmp_path, config))
    assert "journal.sqlite cannot be used (database or disk is full)" in sentence
    assert summary["rounds"] == 30
    assert links == play_undisturbed(config)[0]


def state(value):
    nothing = torch.zeros(0)
    return ServerState(torch.full((50,), value), OptimiserState(0, nothing, nothing), nothing, 1.0)


@pytest.fixture
def store(tmp_path):
    store = EdgeStore(tmp_path)
    for t in (1, 2, 3):
        store.save(SavedState("run", t, state(float(t)), b""))
    return store


def flip(path, place):
    content = bytearray(path.read_bytes())
    content[place] ^= 0x10
    path.write_bytes(bytes(content))


def test_a_store_keeps_the_newest_states_and_reads_the_newest(store):
    assert [path.name for path in sorted(store.folder.iterdir())] == [
        "round-00000002.safetensors",
        "round-00000003.safetensors",
    ]
    assert store.load().round == 3


@pytest.mark.parametrize("place", [0, 100, -1, -60], ids=["length", "header", "last number", "number"])
def test_a_damaged_state_is_passed_over_for_the_one_before(store, place):
    flip(store.folder / "round-00000003.safetensors", place)
    found = store.load()
    assert found.round == 2
    assert np.array_equal(found.server.params.numpy(), np.full(50, 2, np.float32))


def test_a_store_without_a_whole_state_is_refused(store):
    for path in store.folder.iterdir():
        path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(RunFolderError, match="None of the 2 states"):
        store.load()


async def no_room_at_an_edge(folder):
    async with Deployment(folder, settings("full"), secure=False) as deployment:
        await deployment.start_edges(2)
        full = deployment.start_edge("edge-2")
        await deployment.until(lambda: full._handler is not None)

        def save(kept):
            raise RunFolderError("round-00000001.safetensors cannot be written (No space left on device).")

        object.__setattr__(full._store, "save", save)
        summary = await deployment.run
        return summary, deployment.process.folder.read().records("links")


def test_an_edge_whose_disk_is_full_still_plays_and_reports(play, tmp_path, one_thread, caplog):
    summary, links = play(no_room_at_an_edge(tmp_path))
    assert summary["rounds"] == 4
    assert len(links) == 24
    assert all(row["delivered"] for row in links)
    assert "No space left on device" in caplog.text


# A journal that was lost, wholly or in part.


def forget_log(journal):
    """As a copy of the one file would be, taken while the coordinator runs."""
    empty = journal.with_name("empty.sqlite")
    with closing(sqlite3.connect(empty)) as database:
        database.execute("PRAGMA journal_mode=WAL")
    empty.rename(journal)


LOSSES = {
    "emptied": lambda journal: journal.write_bytes(b""),
    "without its log": forget_log,
    "lost": lambda journal: journal.unlink(),
}


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix in (".sqlite", ".yaml", ".json")}


@pytest.mark.parametrize("how", LOSSES)
def test_a_journal_without_a_run_beside_records_is_refused(journal, how):
    LOSSES[how](journal)
    before = contents(journal.parent)
    with pytest.raises(RunFolderError, match=r"holds the records of a run, but .*`hatdfed restore`\), or choose"):
        process(journal.parent)
    assert contents(journal.parent) == before


def test_an_emptied_journal_keeps_its_log(tmp_path):
    begun = process(tmp_path / "run")
    copy = shutil.copytree(tmp_path / "run", tmp_path / "copy")
    begun._journal.close()
    (copy / "journal.sqlite").write_bytes(b"")
    log = copy / "journal.sqlite-wal"
    before = log.read_bytes()
    with pytest.raises(RunFolderError, match="was lost, emptied or copied without"):
        process(copy)
    assert log.read_bytes() == before != b""


def test_a_journal_older_than_the_records_is_refused_and_nothing_is_deleted(journal):
    with closing(sqlite3.connect(journal)) as database, database:
        database.execute("DELETE FROM states WHERE t > 3")
        database.execute("UPDATE states SET t = 2")
        database.execute("DELETE FROM plans WHERE t > 2")
    before = contents(journal.parent)
    with pytest.raises(RunFolderError, match=r"stands at round 2, but there are records of 4 rounds"):
        process(journal.parent)
    assert contents(journal.parent)["run.sqlite"] == before["run.sqlite"]


def test_a_coordinator_that_was_killed_before_its_journal_named_a_run_begins(tmp_path):
    process(tmp_path / "run")._journal.close()
    journal = tmp_path / "run" / "journal.sqlite"
    journal.write_bytes(b"")
    process(tmp_path / "run")._journal.close()
    with closing(sqlite3.connect(journal)) as database, database:
        database.execute("DELETE FROM facts")
    process(tmp_path / "run")._journal.close()


DAMAGED_FACTS = {
    "epoch": ["twelve", '"12"', "", "[1"],
    "run": ["{}", "12"],
    "settings": ["[]"],
    "manifest": ['{"num_params": 3}', '"none"', "0123456789abcdef0123456789abcdef {}"],
    "drained": ["7", '{"a": 1}'],
}


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in DAMAGED_FACTS.items() for text in texts])
def test_a_damaged_entry_is_refused_by_name_and_never_a_traceback(tmp_path, name, text):
    process(tmp_path / "run")._journal.close()
    with closing(sqlite3.connect(tmp_path / "run" / "journal.sqlite")) as database, database:
        database.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, text))
    with pytest.raises(RunFolderError, match=r"journal\.sqlite cannot be used \((an|the) entry .*is damaged\)"):
        read_manifest(tmp_path / "run")


def read_manifest(folder):
    begun = process(folder)
    try:
        return begun.hub.manifest
    finally:
        begun._journal.close()


def test_facts_of_version_0_1_are_read(tmp_path):
    process(tmp_path / "run")._journal.close()
    with closing(sqlite3.connect(tmp_path / "run" / "journal.sqlite")) as database, database:
        database.execute("UPDATE facts SET value = '41' WHERE name = 'epoch'")
    begun = process(tmp_path / "run")
    begun._journal.close()
    assert begun.hub.epoch == 42


def test_only_its_owner_can_enter_a_state_folder(tmp_path):
    process(tmp_path / "run")._journal.close()
    assert (tmp_path / "run").stat().st_mode & 0o777 == 0o700
    EdgeStore(tmp_path / "stores" / "edge").save(SavedState("run", 1, state(1.0), b""))
    assert (tmp_path / "stores" / "edge").stat().st_mode & 0o777 == 0o700


def test_states_of_another_run_are_set_aside_and_never_deleted(store, caplog):
    store.save(SavedState("other", 4, state(4.0), b""))
    before = {path.name: path.read_bytes() for path in store.list_files()}
    flip(store.folder / "round-00000003.safetensors", 0)
    set_aside_other_runs(store, "new")
    assert store.load() is None
    assert {path.name: path.read_bytes() for path in store.folder.glob("run-other-set-aside-*/*")} == {
        "round-00000004.safetensors": before["round-00000004.safetensors"]
    }
    assert len(list(store.folder.glob("run-unknown-set-aside-*/*"))) == 1
    assert "moved to" in caplog.text
    set_aside_other_runs(store, "new")
    assert len(list(store.folder.iterdir())) == 2


def test_an_edge_that_died_while_it_joined_is_said_to_be_silent(tmp_path):
    begun = process(tmp_path / "run")
    begun._journal.add_member(0, "edge-0")
    member = begun.hub.membership.admit("edge-0", "", time.monotonic())
    assert begun.status()["servers"][0]["doing"] == "joining"
    member.last_seen -= 2 * QUICK.away_seconds
    assert begun.status()["servers"][0]["doing"] == "silent; last known: joining"
    begun._journal.close()
