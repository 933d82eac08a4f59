"""Backups of a coordinator's state: consistent while it runs, checked when restored, and never over anything."""

import json
import shutil
import sqlite3
import tarfile
import threading
from contextlib import closing
from datetime import timedelta

import pytest
from tests.deploy.deployment import QUICK, Deployment, settings

from hatdfed.deploy.coordinator.backup import make_backup, restore_backup
from hatdfed.deploy.coordinator.journal import Journal
from hatdfed.deploy.coordinator.process import CoordinatorOptions, CoordinatorProcess
from hatdfed.deploy.identity.identity_store import create_identity_store, open_identity_store
from hatdfed.deploy.transport.endpoints import Endpoints
from hatdfed.errors import RunFolderError
from hatdfed.runs.records.folder import RunFolder


def start(folder, config):
    """A coordinator that only opens its folder."""
    process = CoordinatorProcess(config, QUICK, CoordinatorOptions(folder, "127.0.0.1:0", Endpoints(None)))
    process._journal.close()
    return process


def backup_path(folder, number):
    """Where a backup goes: even numbers into folders, odd numbers into archives."""
    return folder / f"backup-{number}{'.tar' * (number % 2)}"


async def backed_up_run(folder, config):
    """A run of which backups are made as fast as that goes; they are numbered in the order in which they were made."""
    stop = threading.Event()

    def make_backups():
        while not stop.is_set():
            number = len(made)
            made.append(make_backup(folder / "run", backup_path(folder, number)))

    made, thread = [], threading.Thread(target=make_backups)
    async with Deployment(folder, config, secure=False) as deployment:
        thread.start()
        try:
            await deployment.start_edges(3)
            await deployment.run
        finally:
            stop.set()
            thread.join()
    return made


@pytest.fixture(scope="module")
def played(play, tmp_path_factory):
    """The folder of a run with backups of all its times."""
    folder, config = tmp_path_factory.mktemp("played"), settings(rounds=8)
    return folder, config, play(backed_up_run(folder, config))


def test_every_backup_of_a_running_coordinator_is_one_moment_of_it(played, tmp_path):
    folder, config, made = played
    with closing(Journal(folder / "run" / "journal.sqlite")) as journal:
        links = journal.read_links()
    rounds = [backup.round for backup in made]
    assert rounds == sorted(rounds)
    assert len(set(rounds)) > 3, "made at several rounds"
    chosen = {backup.round: number for number, backup in enumerate(made)}.items()
    for t, number in chosen:
        state = tmp_path / str(t)
        restored = restore_backup(backup_path(folder, number), state)
        assert (restored, restored.round) == (made[number], t)
        begun = start(state, config)
        with closing(Journal(state / "journal.sqlite")) as journal:
            assert journal.read_next_round() == t
            assert journal.read_links() == links[: len(journal.read_links())]
            assert t <= len(journal.read_links()) <= t + 1
        assert [row["t"] for row in RunFolder(state).read_rounds()] == list(range(t))
        assert begun.progress.run == restored.run
        assert begun.hub.epoch > 1000, "no start of the lost coordinator had this number"
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o700}


@pytest.fixture
def backup(played, tmp_path):
    """A copy of the last backup that is a folder."""
    folder, _, made = played
    last = (len(made) - 1) // 2 * 2
    return shutil.copytree(folder / f"backup-{last}", tmp_path / "backup")


def test_a_restored_complete_run_has_its_results(played, tmp_path):
    folder, _, _ = played
    make_backup(folder / "run", tmp_path / "last.tar")
    restore_backup(tmp_path / "last.tar", tmp_path / "again")
    assert RunFolder(tmp_path / "again").read_results() == RunFolder(folder / "run").read_results()


@pytest.mark.parametrize("name", ["journal.sqlite", "run.sqlite", "config.yaml", "backup.json"])
def test_a_damaged_backup_is_refused_by_name_and_leaves_nothing(backup, tmp_path, name):
    content = bytearray((backup / name).read_bytes())
    content[len(content) // 2] ^= 1
    (backup / name).write_bytes(bytes(content))
    with pytest.raises(RunFolderError, match=rf"{name} in .* is damaged"):
        restore_backup(backup, tmp_path / "again")
    assert not (tmp_path / "again").exists()


def test_a_backup_without_one_of_its_files_is_refused(backup, tmp_path):
    (backup / "run.sqlite").unlink()
    with pytest.raises(RunFolderError, match=r"cannot be restored \(No such file or directory: .*run\.sqlite"):
        restore_backup(backup, tmp_path / "again")


@pytest.mark.parametrize("content", [b"", b"no archive" * 100])
def test_a_file_that_is_no_backup_is_refused(tmp_path, content):
    (tmp_path / "no.tar").write_bytes(content)
    with pytest.raises(RunFolderError, match=r"no\.tar cannot be restored"):
        restore_backup(tmp_path / "no.tar", tmp_path / "again")
    assert not (tmp_path / "again").exists()


def test_a_backup_that_wants_to_write_elsewhere_is_refused(backup, tmp_path):
    from hatdfed.deploy.coordinator.backup import _digest

    content = json.loads((backup / "backup.json").read_text())
    del content["digest"]
    content["files"]["../escaped"] = content["files"]["config.yaml"]
    (backup / "backup.json").write_text(json.dumps({**content, "digest": _digest(content)}))
    with pytest.raises(RunFolderError, match="names files that no backup has"):
        restore_backup(backup, tmp_path / "again")


def test_nothing_is_overwritten(played, backup, tmp_path):
    folder, _, _ = played
    before = (folder / "run" / "journal.sqlite").read_bytes()
    with pytest.raises(RunFolderError, match="is not empty, and nothing is overwritten"):
        restore_backup(backup, folder / "run")
    assert (folder / "run" / "journal.sqlite").read_bytes() == before
    with pytest.raises(RunFolderError, match="exists already, and a backup never replaces one"):
        make_backup(folder / "run", backup)
    (tmp_path / "empty").mkdir()
    restore_backup(backup, tmp_path / "empty")


def test_what_is_no_state_folder_is_refused(tmp_path):
    with pytest.raises(RunFolderError, match=r"is not a coordinator's --state folder"):
        make_backup(tmp_path, tmp_path / "backup")
    assert list(tmp_path.iterdir()) == []


def test_a_backup_of_a_damaged_journal_is_refused(played, tmp_path):
    copy = shutil.copytree(played[0] / "run", tmp_path / "run")
    with closing(sqlite3.connect(copy / "journal.sqlite")) as database, database:
        database.execute("UPDATE plans SET plan = replace(plan, '<f8', '<f4') WHERE t = 2")
    with pytest.raises(RunFolderError, match="an entry is damaged"):
        make_backup(copy, tmp_path / "backup")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_the_authority_is_in_a_backup_only_if_asked_for_and_its_tokens_never(tmp_path):
    start(tmp_path / "run", settings())
    store = create_identity_store(tmp_path / "ca")
    store.tokens.create("edge-1", timedelta(hours=1))
    store.deny_list.add("edge-9")
    assert not make_backup(tmp_path / "run", tmp_path / "plain").has_identity
    assert make_backup(tmp_path / "run", tmp_path / "whole.tar", tmp_path / "ca").has_identity
    with tarfile.open(tmp_path / "whole.tar") as archive:
        names = archive.getnames()
    assert "ca/ca-key.pem" in names
    assert not any("token" in name for name in names)
    assert (tmp_path / "whole.tar").stat().st_mode & 0o777 == 0o600

    restore_backup(tmp_path / "whole.tar", tmp_path / "again", tmp_path / "ca-again")
    restored = open_identity_store(tmp_path / "ca-again")
    assert restored.authority.pin == store.authority.pin
    assert "edge-9" in restored.deny_list
    assert restored.refresh().read().node == store.identity.read().node
    assert (tmp_path / "ca-again").stat().st_mode & 0o777 == 0o700
    with pytest.raises(RunFolderError, match="holds no certificates"):
        restore_backup(tmp_path / "plain", tmp_path / "more", tmp_path / "ca-more")
    assert not (tmp_path / "more").exists()
