"""The records of one run in SQLite, written round by round and read meanwhile; `schema` declares the tables."""

from __future__ import annotations

import math
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hatdfed.core.energy.energy_model import EnergyRow
from hatdfed.core.round import RoundRecord
from hatdfed.errors import RunFolderError
from hatdfed.runs.records.schema import (
    LEDGER,
    LINKS,
    MATRICES,
    MATRIX_LIMIT,
    METRICS,
    ROUNDS,
    SERVERS,
    SQLITE_ERRORS,
    TABLES,
    TRUST,
    VERDICTS,
    bring_up_to_date,
    file_version,
    read_only_address,
    refuse_newer,
    select_list,
)
from hatdfed.runs.round_row import ROUND_COLUMNS, add_metrics, round_row
from hatdfed.runs.trust_log import NewBeliefs, Verdicts

Records = list[dict[str, Any]]

COMMIT_SECONDS = 1.0
_CACHE_KIB = 128  # of pages in memory, full after a few dozen rounds: from then on it does not grow
_UNMEASURED = EnergyRow._fields.index("modelled_joules")  # columns of a ledger in which nothing was measured
_INSERT_UNMEASURED = LEDGER.insert_first(_UNMEASURED)


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
        except SQLITE_ERRORS as error:
            raise self._trouble(error) from None

    def _begin_reading(self) -> None:
        self._connection.execute("SELECT t FROM rounds LIMIT 1")

    def _begin_writing(self) -> None:
        self._connection.execute("PRAGMA journal_mode=WAL")
        # A commit need not reach the disk by itself: `flush` sees to that before every checkpoint.
        self._connection.execute("PRAGMA synchronous=NORMAL")
        # Rows are appended and hardly ever read again; a larger cache would only make a long run's process grow.
        self._connection.execute(f"PRAGMA cache_size=-{_CACHE_KIB}")
        bring_up_to_date(self._connection)

    def write(self, record: RoundRecord, seconds: float, beliefs: NewBeliefs | None = None) -> None:
        """Keep one round, all of it or nothing; others see it within a second."""
        try:
            self._write_whole(record, round_row(record, seconds), beliefs)
            # Hundreds of runs side by side would do little else if each round of each were committed alone.
            if time.monotonic() - self._committed_at > COMMIT_SECONDS:
                self._commit()
        except SQLITE_ERRORS as error:
            raise self._trouble(error) from None

    def _write_whole(self, record: RoundRecord, row: dict[str, Any], beliefs: NewBeliefs | None) -> None:
        """Whatever interrupts it, no part of a round stays behind."""
        connection = self._connection
        if not connection.in_transaction:
            connection.execute("BEGIN")
        connection.execute("SAVEPOINT round")
        try:
            connection.execute(ROUNDS.insert, tuple(row[name] for name in ROUND_COLUMNS))
            connection.executemany(SERVERS.insert, _server_rows(record))
            connection.executemany(METRICS.insert, _metric_rows(record))
            connection.executemany(LINKS.insert, _link_rows(record))
            self._write_ledger(record.report.energy)
            if record.draw.topology.num_servers <= MATRIX_LIMIT:
                matrices = (record.draw.links.to_dense(column) for column in (record.draw.propensity, record.utility))
                blobs = (matrix.astype("<f4").tobytes() for matrix in matrices)
                connection.execute(MATRICES.insert, (record.t, *blobs))
            if beliefs is not None:
                self._write_beliefs(record.t, beliefs)
            connection.execute("RELEASE round")
        except BaseException:
            if connection.in_transaction:  # a full disk may have ended it already
                connection.execute("ROLLBACK TO round")
            raise

    def _write_beliefs(self, t: int, beliefs: NewBeliefs) -> None:
        self._connection.executemany(TRUST.insert, beliefs.changes)
        if beliefs.verdicts is not None:
            self._connection.execute(VERDICTS.insert, (t, beliefs.verdicts.astype("<f4").tobytes()))

    def flush(self) -> None:
        """Bring everything written so far safely onto the disk."""
        try:
            self._commit()
            self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
        except SQLITE_ERRORS as error:
            raise self._trouble(error) from None

    def forget_from(self, t: int) -> None:
        """Drop round t and all later ones: a resumed run plays them again."""
        try:
            with self._connection as connection:
                for table in TABLES:
                    connection.execute(f"DELETE FROM {table} WHERE t >= ?", (t,))  # noqa: S608 (our own table names)
        except SQLITE_ERRORS as error:
            raise self._trouble(error) from None

    def _write_ledger(self, rows: Sequence[EnergyRow]) -> None:
        """Where nobody has measured, which is nearly always, the columns for that are not written."""
        if any(row.measured_joules is not None for row in rows):
            self._connection.executemany(LEDGER.insert, rows)
        else:
            self._connection.executemany(_INSERT_UNMEASURED, [row[:_UNMEASURED] for row in rows])

    def read_measured(self) -> list[tuple[str, float, float, int, int, str]]:
        """For every cause that was measured: its modelled and measured joules, measured rows, all rows, and meters."""
        query = (
            "SELECT cause, SUM(modelled_joules), SUM(measured_joules), COUNT(measured_joules), COUNT(*), "
            "GROUP_CONCAT(DISTINCT meter) FROM ledger GROUP BY cause HAVING COUNT(measured_joules) > 0 ORDER BY cause"
        )
        try:
            return list(self._connection.execute(query))
        except SQLITE_ERRORS as error:
            raise self._trouble(error) from None

    def records(self, table: str) -> Records:
        """All rows of `rounds`, `servers`, `links`, `ledger` or `trust`, in the order they were written.

        Metrics stand in the rows of rounds and servers under their own names.
        """
        try:
            if file_version(self._connection) < TABLES[table].since:
                return []
            columns = select_list(self._connection, table)
            cursor = self._connection.execute(f"SELECT {columns} FROM {table} ORDER BY t, rowid")  # noqa: S608
            found = [dict(zip(TABLES[table].columns, row, strict=True)) for row in cursor]
        except SQLITE_ERRORS as error:
            raise self._trouble(error) from None
        if table == "rounds":
            self._refuse_gaps(found)
        return self._with_metrics(table, found) if table in ("rounds", "servers") else found

    def _with_metrics(self, table: str, rows: Records) -> Records:
        """Rounds with the means of their metrics, or servers with their own."""
        by_row: dict[tuple[Any, Any], dict[str, Any]] = {}
        try:
            for t, server, metric, value in read_metrics(self._connection, means=table == "rounds"):
                by_row.setdefault((t, server), {})[metric] = value
        except SQLITE_ERRORS as error:
            raise self._trouble(error) from None
        return [add_metrics(row, by_row.get((row["t"], row.get("server")), {})) for row in rows] if by_row else rows

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
        except SQLITE_ERRORS as error:
            raise self._trouble(error) from None
        if row is None:
            return None
        size = math.isqrt(len(row[0]) // 4) if isinstance(row[0], bytes) else 0
        if not size or len(row[0]) != 4 * size * size:
            raise self._trouble("the last probabilities are cut short")
        return np.frombuffer(row[0], dtype="<f4").astype(np.float64).reshape(size, size)

    def last_verdicts(self) -> tuple[int, Verdicts] | None:
        """The verdicts that were kept last, and the round after which they were; None where there are none."""
        try:
            return read_last_verdicts(self._connection)
        except SQLITE_ERRORS as error:
            raise self._trouble(error) from None

    def close(self) -> None:
        """Commit what is left and release the file."""
        try:
            self._commit()
        except SQLITE_ERRORS as error:
            raise self._trouble(error) from None
        finally:
            self._connection.close()

    def _commit(self) -> None:
        self._connection.commit()
        self._committed_at = time.monotonic()

    def _trouble(self, error: Exception | str) -> RunFolderError:
        return RunFolderError(
            f"The records in {self.path} cannot be used ({error}). "
            "Check that the folder is a run of hatdfed, writable, and on a disk with free space."
        )


def read_metrics(connection: sqlite3.Connection, *, means: bool) -> Iterator[tuple[int, int | None, str, float | None]]:
    """Round, server, name and value of every metric: their means over servers, or those of each server."""
    if file_version(connection) < METRICS.since:
        return
    which = "server IS NULL" if means else "server IS NOT NULL"
    query = f"SELECT t, server, metric, value FROM metrics WHERE {which} ORDER BY rowid"  # noqa: S608 (our own words)
    for t, server, metric, value in connection.execute(query):
        if isinstance(metric, str) and isinstance(value, float | int | None):
            yield t, server, metric, value


def read_last_verdicts(connection: sqlite3.Connection) -> tuple[int, Verdicts] | None:
    """The verdicts that were kept last, and the round; None where there are none, or what is there is not a matrix."""
    if file_version(connection) < VERDICTS.since:
        return None
    row = connection.execute("SELECT t, verdict FROM verdicts ORDER BY t DESC LIMIT 1").fetchone()
    size = math.isqrt(len(row[1]) // 4) if row is not None and isinstance(row[1], bytes) else 0
    if not size or not isinstance(row[0], int) or len(row[1]) != 4 * size * size:
        return None
    return row[0], np.frombuffer(row[1], dtype="<f4").astype(np.float32).reshape(size, size)


def _server_rows(record: RoundRecord) -> list[tuple[Any, ...]]:
    return [
        (
            record.t,
            server,
            100 * report.accuracy,
            report.num_samples,
            record.away.get(server),
            _charge(record, server),
            report.training_loss,
            report.validation_loss,
        )
        for server, report in enumerate(record.report.servers)
        if report is not None
    ]


def _metric_rows(record: RoundRecord) -> list[tuple[Any, ...]]:
    """Means first, then those of each server."""
    told: list[tuple[int | None, Mapping[str, float | None]]] = [(None, record.report.metrics)]
    told += [(server, report.metrics) for server, report in enumerate(record.report.servers) if report is not None]
    return [(record.t, server, name, value) for server, metrics in told for name, value in metrics.items()]


def _charge(record: RoundRecord, server: int) -> float | None:
    """In joules; None of a server on mains."""
    charge = math.inf if record.charge is None else float(record.charge[server])
    return charge if math.isfinite(charge) else None


def _link_rows(record: RoundRecord) -> list[tuple[Any, ...]]:
    topology, places = record.draw.topology, record.draw.places
    columns = (
        *topology.pairs.T,
        record.report.arrived(topology).astype(np.int64),
        record.draw.propensity[places],
        record.utility[places],
    )
    importance = [None if math.isnan(weight) else weight for weight in record.report.weights(topology).tolist()]
    ages = [None] * len(importance) if record.ages is None else record.ages[places].tolist()
    figures = (*(column.tolist() for column in columns), importance, ages)
    return list(zip([record.t] * len(importance), *figures, strict=True))
