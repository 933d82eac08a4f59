"""A coordinator's state folder: opened for a new run or to continue one, and refused where its files do not agree.

The journal names the run, and the records of rounds are at most one round ahead of it. An older or an empty journal
beside records is a damaged folder: a run that started from it would overwrite the records and lose the edges' models.
Everything here is checked before SQLite opens the journal for writing, because it deletes the log of an empty file.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from contextlib import closing
from pathlib import Path

from hatdfed.deploy.coordinator.journal import Journal
from hatdfed.errors import ConfigError, RunFolderError
from hatdfed.runs.records.folder import RunFolder
from hatdfed.runs.records.schema import SQLITE_ERRORS, read_only_address
from hatdfed.setup.config import Config, SupplyConfig
from hatdfed.setup.layers import Layer, resolve, resolve_over
from hatdfed.setup.run_identity import run_difference
from hatdfed.setup.versions import read_release
from hatdfed.version import __version__

JOURNAL = "journal.sqlite"
_log = logging.getLogger("hatdfed.deploy.coordinator")
_REMEDY = "Restore the folder from a backup (`hatdfed restore`), or choose another --state to start a new run."


def open_state_folder(path: Path, config: Config) -> RunFolder:
    """Create the folder of a new run, which only its owner can enter, or open the one of an earlier start."""
    make_state_folder(path)
    folder, journal = RunFolder(path), path / JOURNAL
    log = journal.with_name(f"{JOURNAL}-wal")
    if not any(file.exists() for file in (journal, log, folder.database)):
        return RunFolder.create(path, config)
    is_emptied = not _size(journal) and _size(log) > 0
    if is_emptied or (folder.database.exists() and not _holds_run(journal)):
        state = "its journal names no run" if journal.exists() else "it has no journal"
        raise RunFolderError(
            f"{path} holds the records of a run, but {state}: {JOURNAL} was lost, emptied or copied without "
            f"{log.name}. Nothing was changed. {_REMEDY}"
        )
    return folder


def resolve_for_state(path: Path, layer: Layer) -> Config:
    """Complete a user's settings: for a new run by today's defaults, for a run in `path` by its own settings.

    So a run keeps its recipe when hatdfed is updated, and settings that came later are neutral in it.
    """
    today = resolve(layer)
    _refuse_simulated_supply(today)
    if not (path / JOURNAL).exists():
        return today
    try:
        earlier = RunFolder(path).config()
    except ConfigError:  # only the journal knows its run
        return today
    config = resolve_over(earlier, layer)
    if (kept := run_difference(config, today)) is not None:
        _log.info("the run keeps its own %s, %r; a new run would have %r", *kept)
    return config


def _refuse_simulated_supply(config: Config) -> None:
    """Real machines have real batteries, and rounds that last as long as they last."""
    if config.supply != SupplyConfig() or config.energy.idle_watts != 0:
        what = "energy.idle_watts" if config.supply == SupplyConfig() else "supply"
        raise ConfigError(f"{what} is for simulations: it describes machines that are not real. Leave it out.")


def refuse_newer_journal(journal: Journal) -> None:
    """Refuse a journal that a later version of hatdfed has written to: it may mean other things by the same names."""
    version = journal.read_fact("version") or "0.1"
    if (read_release(version) or (0, 0)) > (read_release(__version__) or (0, 0)):
        raise RunFolderError(
            f"{journal.path.parent} was last used by hatdfed {version}, and this is {__version__}. Install that "
            "version, or restore a backup that was made before it (`hatdfed restore`)."
        )


def refuse_older_journal(folder: RunFolder, journal: Journal) -> None:
    """Refuse a journal that stands at an earlier round than the records: those would be deleted and played again.

    The record of a round is written just before the journal's next state, so there may be one of a committed plan.
    """
    recorded, next_round = _count_rounds(folder.database), journal.read_next_round()
    if recorded > next_round + (recorded > 0 and journal.has_plan(next_round)):
        raise RunFolderError(
            f"The journal in {folder.path} stands at round {next_round}, but there are records of {recorded} rounds: "
            f"it is an older copy, or its last part is lost. Nothing was changed. {_REMEDY}"
        )


def make_state_folder(path: Path) -> None:
    """Make the folder if it is missing; an existing one keeps its mode, which may be a mounted volume's."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise RunFolderError(f"The folder {path} cannot be made ({error.strerror}). Choose another --state.") from None


def _holds_run(journal: Path) -> bool:
    """Whether the journal names its run; True also for a file that is damaged, which opening it will explain."""
    if not _size(journal):
        return False
    try:
        with closing(sqlite3.connect(read_only_address(journal), uri=True)) as database:
            return database.execute("SELECT 1 FROM facts WHERE name = 'run'").fetchone() is not None
    except sqlite3.OperationalError as error:
        return "no such table" not in str(error)
    except SQLITE_ERRORS:
        return True


def _count_rounds(records: Path) -> int:
    """The number of rounds up to the last one recorded; 0 where there are no records that can be read."""
    if not _size(records):
        return 0
    try:
        with closing(sqlite3.connect(read_only_address(records), uri=True)) as database:
            (last,) = database.execute("SELECT COALESCE(MAX(t), -1) FROM rounds").fetchone()
            return int(last) + 1
    except SQLITE_ERRORS:
        return 0


def _size(path: Path) -> int:
    try:
        return os.stat(path).st_size  # noqa: PTH116
    except OSError:
        return 0
