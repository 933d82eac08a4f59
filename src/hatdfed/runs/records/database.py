"""The rounds and the ledger of one run in SQLite: written round by round, readable while the run goes on."""

from __future__ import annotations

import math
import sqlite3
import time
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hatdfed.core.candidates import spread
from hatdfed.core.energy.ledger import joules_by_cause
from hatdfed.core.round import RoundRecord
from hatdfed.errors import RunFolderError

Records = list[dict[str, Any]]

# Probabilities and utilities of all links are kept for fleets up to this size; beyond it only those of drawn links.
MATRIX_LIMIT = 256

COMMIT_SECONDS = 1.0

_SCHEMA = """
CREATE TABLE IF NOT EXISTS rounds (
    t INTEGER PRIMARY KEY, links INTEGER, avg_accuracy REAL, std_accuracy REAL, best_accuracy REAL,
    worst_accuracy REAL, upload_joules REAL, training_joules REAL, link_joules REAL,
    regret_best_fixed REAL, regret_best_each_round REAL, seconds REAL);
CREATE TABLE IF NOT EXISTS servers (
    t INTEGER, server INTEGER, accuracy REAL, num_samples INTEGER, PRIMARY KEY (t, server));
CREATE TABLE IF NOT EXISTS links (
    t INTEGER, receiver INTEGER, sender INTEGER, delivered INTEGER, propensity REAL, utility REAL,
    importance REAL, PRIMARY KEY (t, receiver, sender));
CREATE TABLE IF NOT EXISTS matrices (t INTEGER PRIMARY KEY, propensity BLOB, utility BLOB);
CREATE TABLE IF NOT EXISTS ledger (
    t INTEGER, cause TEXT, sender INTEGER, receiver INTEGER, bits REAL, joules REAL, source TEXT);
CREATE INDEX IF NOT EXISTS ledger_by_round ON ledger (t);
"""
_TABLES = ("rounds", "servers", "links", "matrices", "ledger")
_ALWAYS_THERE = ("t", "links", "upload_joules", "training_joules", "link_joules", "seconds")


class RunDatabase:
    """One run's records; in memory when no path is given."""

    def __init__(self, path: Path | None, *, read_only: bool = False) -> None:
        self.path = path
        self._committed_at = time.monotonic()
        try:
            if read_only and path is not None:
                self._connection = sqlite3.connect(read_only_address(path), uri=True)
                self._connection.execute("SELECT t FROM rounds LIMIT 1")
            else:
                self._connection = sqlite3.connect(path or ":memory:")
                self._connection.execute("PRAGMA journal_mode=WAL")
                # A commit need not reach the disk by itself: `flush` sees to that before every checkpoint.
                self._connection.execute("PRAGMA synchronous=NORMAL")
                self._connection.executescript(_SCHEMA)
        except sqlite3.Error as error:
            raise self._trouble(error) from None

    def write(self, record: RoundRecord, seconds: float) -> None:
        """Keep one round, all of it or nothing; others see it within a second."""
        accuracy = 100 * record.report.accuracy
        spent = joules_by_cause(record.report.energy)
        known = accuracy[~np.isnan(accuracy)]
        figures = (known.mean(), known.std(), known.max(), known.min()) if len(known) else (None,) * 4
        row = (record.t, record.draw.topology.num_links, *figures, *spent.values(), *record.regret, seconds)
        try:
            self._write_whole(record, row)
            # Hundreds of runs side by side would do little else if each round of each were committed alone.
            if time.monotonic() - self._committed_at > COMMIT_SECONDS:
                self._commit()
        except sqlite3.Error as error:
            raise self._trouble(error) from None

    def _write_whole(self, record: RoundRecord, row: tuple[Any, ...]) -> None:
        """Whatever interrupts it, no part of a round stays behind."""
        connection = self._connection
        if not connection.in_transaction:
            connection.execute("BEGIN")
        connection.execute("SAVEPOINT round")
        try:
            connection.execute("INSERT INTO rounds VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
            connection.executemany("INSERT INTO servers VALUES (?, ?, ?, ?)", _server_rows(record))
            connection.executemany("INSERT INTO links VALUES (?, ?, ?, ?, ?, ?, ?)", _link_rows(record))
            connection.executemany("INSERT INTO ledger VALUES (?, ?, ?, ?, ?, ?, ?)", record.report.energy)
            if record.draw.topology.num_servers <= MATRIX_LIMIT:
                matrices = (spread(table, record.draw.candidates) for table in (record.draw.propensity, record.utility))
                blobs = (matrix.astype("<f4").tobytes() for matrix in matrices)
                connection.execute("INSERT INTO matrices VALUES (?, ?, ?)", (record.t, *blobs))
            connection.execute("RELEASE round")
        except BaseException:
            if connection.in_transaction:  # a full disk may have ended it already
                connection.execute("ROLLBACK TO round")
            raise

    def flush(self) -> None:
        """Bring everything written so far safely onto the disk."""
        try:
            self._commit()
            self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
        except sqlite3.Error as error:
            raise self._trouble(error) from None

    def forget_from(self, t: int) -> None:
        """Drop round t and all later ones: a resumed run plays them again."""
        try:
            with self._connection as connection:
                for table in _TABLES:
                    connection.execute(f"DELETE FROM {table} WHERE t >= ?", (t,))  # noqa: S608 (our own table names)
        except sqlite3.Error as error:
            raise self._trouble(error) from None

    def records(self, table: str) -> Records:
        """All rows of `rounds`, `servers`, `links` or `ledger`, in the order they were written."""
        try:
            cursor = self._connection.execute(f"SELECT * FROM {table} ORDER BY t, rowid")  # noqa: S608
            names = [column[0] for column in cursor.description]
            found = [dict(zip(names, row, strict=True)) for row in cursor]
        except sqlite3.Error as error:
            raise self._trouble(error) from None
        if lost := _columns().get(table, set()) - set(names):
            raise self._trouble(f"{table} has no {', '.join(sorted(lost))}")
        if table == "rounds":
            self._refuse_gaps(found)
        return found

    def _refuse_gaps(self, rounds: Records) -> None:
        """Accuracies may be unknown; the rest is there in every round, and all of it is numbers."""
        for row in rounds:
            for name, value in row.items():
                if not isinstance(value, int | float) and (value is not None or name in _ALWAYS_THERE):
                    raise self._trouble(f"{name} of round {row['t']} is no number")

    def last_propensity(self) -> NDArray[np.float64] | None:  # [N, N]
        """Probability of every link in the last round; None where matrices are not kept."""
        try:
            row = self._connection.execute("SELECT propensity FROM matrices ORDER BY t DESC LIMIT 1").fetchone()
        except sqlite3.Error as error:
            raise self._trouble(error) from None
        if row is None:
            return None
        size = math.isqrt(len(row[0]) // 4) if isinstance(row[0], bytes) else 0
        if not size or len(row[0]) != 4 * size * size:
            raise self._trouble("the last probabilities are cut short")
        return np.frombuffer(row[0], dtype="<f4").astype(np.float64).reshape(size, size)

    def close(self) -> None:
        """Commit what is left and release the file."""
        try:
            self._commit()
        except sqlite3.Error as error:
            raise self._trouble(error) from None
        finally:
            self._connection.close()

    def _commit(self) -> None:
        self._connection.commit()
        self._committed_at = time.monotonic()

    def _trouble(self, error: sqlite3.Error | str) -> RunFolderError:
        return RunFolderError(
            f"The records in {self.path} cannot be used ({error}). "
            "Check that the folder is a run of hatdfed, writable, and on a disk with room."
        )


@cache
def _columns() -> dict[str, set[str]]:
    """The columns of every table, as the schema says."""
    with closing(sqlite3.connect(":memory:")) as empty:
        empty.executescript(_SCHEMA)
        return {table: {row[1] for row in empty.execute(f"PRAGMA table_info({table})")} for table in _TABLES}


def read_only_address(path: Path) -> str:
    """How SQLite opens a file that is only read.

    Without a write-ahead log nobody is writing. Then SQLite need not make files of its own beside the database, and a
    folder that is read-only can be read.
    """
    is_still = not path.with_name(f"{path.name}-wal").exists()
    return f"{path.resolve().as_uri()}?{'immutable=1' if is_still else 'mode=ro'}"


def _server_rows(record: RoundRecord) -> list[tuple[Any, ...]]:
    return [
        (record.t, server, 100 * report.accuracy, report.num_samples)
        for server, report in enumerate(record.report.servers)
        if report is not None
    ]


def _link_rows(record: RoundRecord) -> list[tuple[Any, ...]]:
    topology, places = record.draw.topology, record.draw.places
    columns = (
        *topology.pairs.T,
        record.report.arrived(topology).astype(np.int64),
        record.draw.propensity.take(places),
        record.utility.take(places),
    )
    importance = [None if math.isnan(weight) else weight for weight in record.report.weights(topology).tolist()]
    return list(zip([record.t] * len(importance), *(column.tolist() for column in columns), importance, strict=True))
