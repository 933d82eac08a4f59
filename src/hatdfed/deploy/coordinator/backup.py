"""Backups of a coordinator's state folder: made while the coordinator runs, checked, and restored to a new folder.

A backup is a folder, or a .tar file of it:

backup.json       which run, at which round, and size and SHA-256 of every other file
journal.sqlite    the journal as it was at one moment
run.sqlite        the records of the rounds before the one that the journal stands at
config.yaml, environment.json, results.json
ca/               the authority and the coordinator's identity, only if asked for; join tokens are never in it
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import sqlite3
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from hatdfed.deploy.coordinator.journal import Journal
from hatdfed.deploy.coordinator.state_folder import JOURNAL, make_state_folder
from hatdfed.errors import RunFolderError
from hatdfed.runs.records.folder import RunFolder
from hatdfed.runs.records.schema import tables_in
from hatdfed.version import __version__

CONTENT = "backup.json"
RECORDS = "run.sqlite"
_FORMAT = 1  # to be increased whenever an older version would misunderstand
_SMALL_FILES = ("config.yaml", "environment.json")
_RESULTS = "results.json"
_IDENTITY = "ca"
_NOT_COPIED = ("tokens.sqlite",)  # a token that was used since the backup would work once more
_LOGS = ("-wal", "-shm", "-journal")  # of databases, which are copied as SQLite does
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,100}(/[A-Za-z0-9_-][A-Za-z0-9._-]{0,100}){0,4}")
_MAX_CONTENT = 1 << 20  # bytes of backup.json
_SKIPPED_STARTS = 1000  # of the lost coordinator after the backup: their numbers must not be used again


@dataclass(frozen=True)
class FileEntry:
    """Size and digest of one file in a backup."""

    size: int
    sha256: str


@dataclass(frozen=True)
class Backup:
    """What a backup holds."""

    run: str
    round: int  # the first one that is not in it
    made_at: str
    version: str  # of the hatdfed that made it
    files: Mapping[str, FileEntry] = field(default_factory=dict)

    @property
    def has_identity(self) -> bool:
        """Whether the authority's key is in it."""
        return any(name.startswith(f"{_IDENTITY}/") for name in self.files)

    @property
    def size(self) -> int:
        """Bytes of all files together."""
        return sum(entry.size for entry in self.files.values())


def make_backup(state: Path, out: Path, ca: Path | None = None) -> Backup:
    """Copy a coordinator's state, and with `ca` its authority, to a new folder or .tar file; it may run meanwhile."""
    if not (state / JOURNAL).is_file():
        raise RunFolderError(f"{state} is not a coordinator's --state folder: it has no {JOURNAL}. Check the path.")
    if os.path.lexists(out):
        raise RunFolderError(f"{out} exists already, and a backup never replaces one. Choose another name.")
    with _explain_errors(f"The backup {out} cannot be made"), _stage_beside(out) as folder:
        backup = _copy_state(state, folder)
        if ca is not None:
            _copy_identity(ca, folder / _IDENTITY)
        backup = _describe_files(backup, folder)
        _write_content(backup, folder)
        if out.suffix == ".tar":
            _pack(folder, backup, out)
        else:
            _sync(folder, backup)
            folder.rename(out)
        _sync_folder(out.parent)
    return backup


def restore_backup(source: Path, state: Path, ca: Path | None = None) -> Backup:
    """Check a backup and copy it to folders that must not exist yet, or be empty."""
    with _explain_errors(f"The backup {source} cannot be restored"), _open_backup(source) as read:
        backup = _read_content(read, source)
        if ca is not None and not backup.has_identity:
            raise RunFolderError(f"{source} holds no certificates: it was made without --ca. Leave --ca out.")
        targets = {state: ""} | ({} if ca is None else {ca: f"{_IDENTITY}/"})
        for target in targets:
            if target.exists() and (not target.is_dir() or any(target.iterdir())):
                raise RunFolderError(
                    f"{target} is not empty, and nothing is overwritten. Move it away, or choose another."
                )
        with contextlib.ExitStack() as stack:
            staged = {target: stack.enter_context(_stage_inside(target)) for target in targets}
            for target, prefix in targets.items():
                _fetch(backup, prefix, read, staged[target], source)
            _prepare_journal(staged[state] / JOURNAL, backup)
            for target in reversed(targets):  # the state last, and in it the journal
                _move_up(staged[target], target)
    return backup


# Copying what a coordinator writes.


def _copy_state(state: Path, folder: Path) -> Backup:
    """Copy the journal first: the records, which are written before it, then have all of its rounds."""
    _copy_database(state / JOURNAL, folder / JOURNAL)
    run, next_round = _check_journal(folder / JOURNAL)
    if next_round:  # before the first round there is nothing in the records, perhaps not even tables
        if not (state / RECORDS).exists():
            raise RunFolderError(f"{state} has no {RECORDS}, but its journal stands at round {next_round}.")
        _copy_database(state / RECORDS, folder / RECORDS)
        _cut_records(folder / RECORDS, next_round)
    for name in _SMALL_FILES:
        if (state / name).exists():
            shutil.copyfile(state / name, folder / name)
    results = RunFolder(state).read_final(next_round)
    if results is not None and results["rounds"] == next_round:  # else they are of rounds that the backup has not
        shutil.copyfile(state / _RESULTS, folder / _RESULTS)
    return Backup(run, next_round, datetime.now(UTC).isoformat(timespec="seconds"), __version__)


def _copy_database(source: Path, target: Path) -> None:
    """Copy a database as it is at one moment; whoever writes to it is neither delayed nor disturbed."""
    address = f"{source.resolve().as_uri()}?mode=ro"
    with closing(sqlite3.connect(address, uri=True)) as origin, closing(sqlite3.connect(target)) as copy:
        origin.backup(copy)


def _check_journal(path: Path) -> tuple[str, int]:
    """Read every entry of a copied journal; returns its run and the round that it stands at."""
    with closing(Journal(path)) as journal:
        journal.verify()
        run, next_round = journal.read_fact("run"), journal.read_next_round()
    path.with_suffix(".lock").unlink()
    if run is None:
        raise RunFolderError(f"{JOURNAL} names no run yet. Start the coordinator once, then make the backup.")
    return run, next_round


def _cut_records(path: Path, next_round: int) -> None:
    """Delete rounds that were played between the two copies from the second, and check that no other is missing."""
    with closing(sqlite3.connect(path)) as database:
        with database:
            for table in tables_in(database):
                database.execute(f"DELETE FROM {table} WHERE t >= ?", (next_round,))  # noqa: S608 (our own table names)
        (there,) = database.execute("SELECT COUNT(*) FROM rounds").fetchone()
    if there != next_round:
        raise RunFolderError(f"{RECORDS} has {there} of the {next_round} rounds before the one of the journal.")


def _copy_identity(ca: Path, target: Path) -> None:
    if not (ca / "ca-key.pem").is_file():
        raise RunFolderError(f"{ca} is not a folder made by `hatdfed ca init`. Check --ca.")
    for path in sorted(ca.rglob("*")):
        name = path.relative_to(ca)
        if path.is_file() and not path.name.startswith((".", *_NOT_COPIED)) and not path.name.endswith(_LOGS):
            (target / name).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            (_copy_database if path.suffix == ".sqlite" else shutil.copyfile)(path, target / name)


# What a backup says about itself.


def _describe_files(backup: Backup, folder: Path) -> Backup:
    files = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        path.chmod(0o600)
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        files[path.relative_to(folder).as_posix()] = FileEntry(path.stat().st_size, digest)
    return Backup(backup.run, backup.round, backup.made_at, backup.version, files)


def _write_content(backup: Backup, folder: Path) -> None:
    content = {"format": _FORMAT, **asdict(backup)}
    text = json.dumps({**content, "digest": _digest(content)}, indent=2)
    (folder / CONTENT).write_text(f"{text}\n", encoding="utf-8")
    (folder / CONTENT).chmod(0o600)


def _read_content(read: Callable[[str], IO[bytes]], source: Path) -> Backup:
    with read(CONTENT) as file:
        text = file.read(_MAX_CONTENT + 1)
    try:
        content = json.loads(text)
        digest = content.pop("digest")
        is_whole = digest == _digest(content) and isinstance(content["files"], dict)
    except (ValueError, RecursionError, AttributeError, KeyError):
        is_whole = False
    if not is_whole:
        raise RunFolderError(f"{CONTENT} in {source} is damaged. Use another backup.")
    if content.pop("format") != _FORMAT:
        raise RunFolderError(f"{source} was made by hatdfed {content['version']}. Update hatdfed to restore it.")
    files = {name: FileEntry(**entry) for name, entry in content.pop("files").items()}
    if not all(map(_NAME.fullmatch, files)) or not all(entry.size >= 0 for entry in files.values()):
        raise RunFolderError(f"{source} names files that no backup has. Use another one.")
    return Backup(**content, files=files)


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


# Reading a backup.


@contextlib.contextmanager
def _open_backup(source: Path) -> Iterator[Callable[[str], IO[bytes]]]:
    """Open a backup; yields a function that opens one of its files by name."""
    if source.is_dir():
        yield lambda name: (source / name).open("rb")
        return
    with tarfile.open(source, "r:") as archive:

        def read(name: str) -> IO[bytes]:
            file = archive.extractfile(name) if name in archive.getnames() else None
            if file is None:
                raise RunFolderError(f"{source} has no {name}, so it is no whole backup. Use another one.")
            return file

        yield read


def _fetch(backup: Backup, prefix: str, read: Callable[[str], IO[bytes]], folder: Path, source: Path) -> None:
    """Copy the files that begin with `prefix`, or those in no folder, and check their digests."""
    for name, entry in backup.files.items():
        if not name.startswith(prefix) or (not prefix and "/" in name):
            continue
        target = folder / name.removeprefix(prefix)
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        digest, left = hashlib.sha256(), entry.size + 1
        with read(name) as file, target.open("xb") as copy:
            target.chmod(0o600)
            while block := file.read(min(left, 1 << 20)):
                copy.write(block)
                digest.update(block)
                left -= len(block)
            copy.flush()
            os.fsync(copy.fileno())
        if digest.hexdigest() != entry.sha256:
            raise RunFolderError(
                f"{name} in {source} is damaged: its digest is not the one of {CONTENT}. Use another backup."
            )


def _prepare_journal(path: Path, backup: Backup) -> None:
    """Check the restored journal, and skip the numbers of starts that the lost coordinator may have used since."""
    if _check_journal(path) != (backup.run, backup.round):
        raise RunFolderError(f"{JOURNAL} in the backup is not the journal of run {backup.run}. Use another backup.")
    with closing(Journal(path)) as journal:
        journal.write_fact("epoch", journal.read_fact("epoch") + _SKIPPED_STARTS)
    path.with_suffix(".lock").unlink()


# Folders that appear whole or not at all.


@contextlib.contextmanager
def _stage_beside(out: Path) -> Iterator[Path]:
    """Make a folder beside the one to be made, which is renamed to it in the end, or removed."""
    out.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _stage_inside(target: Path) -> Iterator[Path]:
    """Make a folder inside the one to be filled, which may be a mounted volume; both are removed after a failure."""
    is_new = not target.exists()
    make_state_folder(target)
    folder = Path(tempfile.mkdtemp(prefix=".restoring-", dir=target))
    try:
        yield folder
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        if is_new:
            shutil.rmtree(target, ignore_errors=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)


def _move_up(folder: Path, target: Path) -> None:
    """Move all files up; the journal last, without which a coordinator refuses the folder."""
    for path in sorted(folder.iterdir(), key=lambda path: path.name == JOURNAL):
        path.rename(target / path.name)
    _sync_folder(target)


def _pack(folder: Path, backup: Backup, out: Path) -> None:
    """Write the .tar file under another name in the staging folder, then rename it."""
    partial = folder / f"{out.name}.partial"
    with partial.open("xb") as file:
        partial.chmod(0o600)
        with tarfile.open(fileobj=file, mode="w") as archive:
            for name in (CONTENT, *backup.files):
                archive.add(folder / name, name, recursive=False)
        file.flush()
        os.fsync(file.fileno())
    partial.rename(out)


def _sync(folder: Path, backup: Backup) -> None:
    for name in (CONTENT, *backup.files):
        with (folder / name).open("rb") as file:
            os.fsync(file.fileno())
    _sync_folder(folder)


def _sync_folder(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def _explain_errors(what: str) -> Iterator[None]:
    """Turn errors of the disk, of SQLite and of an archive into one sentence."""
    try:
        yield
    except OSError as error:
        raise RunFolderError(
            f"{what} ({error.strerror or error}: {error.filename}). Check the paths and the disk."
        ) from None
    except (sqlite3.Error, tarfile.TarError, TypeError, KeyError, ValueError) as error:
        raise RunFolderError(f"{what} ({error}). Check that it is what it should be, and undamaged.") from None
