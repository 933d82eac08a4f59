"""The rounds and the ledger of one run in SQLite: written round by round, readable while the run goes on."""

from __future__ import annotations

import math
import sqlite3
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hatdfed.core.round import RoundRecord
from hatdfed.errors import RunFolderError
from hatdfed.runs.records.schema import (
    LEDGER,
    LINKS,
    MATRICES,
    ROUNDS,
    SERVERS,
    TABLES,
    bring_up_to_date,
    refuse_newer,
    select_list,
)
from hatdfed.runs.round_row import ROUND_COLUMNS, round_row

Records = list[dict[str, Any]]

# Probabilities and utilities of all links are kept for fleets up to this size; beyond it only those of drawn links.
MATRIX_LIMIT = 256

COMMIT_SECONDS = 1.0


class RunDatabase:
    """One run's records; in memory when no path is given."""

    def __init__(self, path: Path | None, *, read_only: bool = False) -> None:
        self.path = path
        self._committed_at = time.monotonic()
        is_only_read = read_only and path is not None
        try:
            address = read_only_address(path) if read_only and path is not None else path or ":memory:"
            self._connection = sqlite3.connect(address, uri=is_only_read)
            try:
                refuse_newer(self._connection, path)  # before anything is written
                self._begin_reading() if is_only_read else self._begin_writing()
            except BaseException:
                self._connection.close()
                raise
        except sqlite3.Error as error:
            raise self._trouble(error) from None

    def _begin_reading(self) -> None:
        self._connection.execute("SELECT t FROM rounds LIMIT 1")

    def _begin_writing(self) -> None:
        self._connection.execute("PRAGMA journal_mode=WAL")
        # A commit need not reach the disk by itself: `flush` sees to that before every checkpoint.
        self._connection.execute("PRAGMA synchronous=NORMAL")
        bring_up_to_date(self._connection)

    def write(self, record: RoundRecord, seconds: float) -> None:
        """Keep one round, all of it or nothing; others see it within a second."""
        try:
            self._write_whole(record, round_row(record, seconds))
            # Hundreds of runs side by side would do little else if each round of each were committed alone.
            if time.monotonic() - self._committed_at > COMMIT_SECONDS:
                self._commit()
        except sqlite3.Error as error:
            raise self._trouble(error) from None

    def _write_whole(self, record: RoundRecord, row: dict[str, Any]) -> None:
        """Whatever interrupts it, no part of a round stays behind."""
        connection = self._connection
        if not connection.in_transaction:
            connection.execute("BEGIN")
        connection.execute("SAVEPOINT round")
        try:
            connection.execute(ROUNDS.insert, tuple(row.values()))
            connection.executemany(SERVERS.insert, _server_rows(record))
            connection.executemany(LINKS.insert, _link_rows(record))
            connection.executemany(LEDGER.insert, record.report.energy)
            if record.draw.topology.num_servers <= MATRIX_LIMIT:
                matrices = (record.draw.links.to_dense(column) for column in (record.draw.propensity, record.utility))
                blobs = (matrix.astype("<f4").tobytes() for matrix in matrices)
                connection.execute(MATRICES.insert, (record.t, *blobs))
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
                for table in TABLES:
                    connection.execute(f"DELETE FROM {table} WHERE t >= ?", (t,))  # noqa: S608 (our own table names)
        except sqlite3.Error as error:
            raise self._trouble(error) from None

    def records(self, table: str) -> Records:
        """All rows of `rounds`, `servers`, `links` or `ledger`, in the order they were written."""
        try:
            columns = select_list(self._connection, table)
            cursor = self._connection.execute(f"SELECT {columns} FROM {table} ORDER BY t, rowid")  # noqa: S608
            found = [dict(zip(TABLES[table].columns, row, strict=True)) for row in cursor]
        except sqlite3.Error as error:
            raise self._trouble(error) from None
        if table == "rounds":
            self._refuse_gaps(found)
        return found

    def _refuse_gaps(self, rounds: Records) -> None:
        """All figures are numbers, and only those that may be unknown are ever missing."""
        for row in rounds:
            for name, value in row.items():
                if not isinstance(value, int | float) and (value is not None or not ROUND_COLUMNS[name].may_be_null):
                    raise self._trouble(f"{name} of round {row['t']} is not a number")

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
        record.draw.propensity[places],
        record.utility[places],
    )
    importance = [None if math.isnan(weight) else weight for weight in record.report.weights(topology).tolist()]
    return list(zip([record.t] * len(importance), *(column.tolist() for column in columns), importance, strict=True))
