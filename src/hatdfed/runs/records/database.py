"""The records of one run in SQLite: its tables, and how they are written round by round and read meanwhile.

The file has a version. Version 0 is what hatdfed 0.1.0 wrote. Every column says which version brought it, so a file can
be brought up to date by adding what its version lacks, and a file that is only read has NULL there.
"""

from __future__ import annotations

import math
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hatdfed.core.energy.energy_model import EnergyRow
from hatdfed.core.round import RoundRecord
from hatdfed.errors import RunFolderError
from hatdfed.runs.round_row import ROUND_COLUMNS, Column, add_metrics, round_row
from hatdfed.runs.trust_log import MOST_VERDICTS, NewBeliefs, Verdicts

Records = list[dict[str, Any]]

# Probabilities and utilities of all links are kept for fleets up to this size; beyond it only those of drawn links.
MATRIX_LIMIT = 256

COMMIT_SECONDS = 1.0
SQLITE_ERRORS = (sqlite3.Error, UnicodeDecodeError)  # the latter where a message quotes a damaged file
_CACHE_KIB = 128  # of pages in memory, full after a few dozen rounds: from then on it does not grow


@dataclass(frozen=True)
class Table:
    """One table; what it holds a row for, and by which columns a row is found."""

    name: str
    row_for: str
    columns: Mapping[str, Column]
    key: tuple[str, ...] = ()

    @property
    def since(self) -> int:
        """Version of the database that brought the table."""
        return min(column.since for column in self.columns.values())

    @property
    def insert(self) -> str:
        """A statement that takes one row, in the order of the columns."""
        return self.insert_first(len(self.columns))

    def insert_first(self, count: int) -> str:
        """A statement that takes the first `count` columns of a row; the others are NULL."""
        names = list(self.columns)[:count]
        return f"INSERT INTO {self.name} ({', '.join(names)}) VALUES ({', '.join('?' * count)})"  # noqa: S608 (our own names)

    @property
    def create(self) -> str:
        """A statement that makes the table."""
        key = [f"PRIMARY KEY ({', '.join(self.key)})"] if self.key else []
        return f"CREATE TABLE {self.name} ({', '.join([*map(_definition, self.columns.values()), *key])})"


def _table(name: str, row_for: str, columns: Iterable[Column], key: tuple[str, ...] = ()) -> Table:
    return Table(name, row_for, {column.name: column for column in columns}, key)


def _definition(column: Column) -> str:
    return f"{column.name} {column.sql}"


_T = Column(name="t", sql="INTEGER", meaning="Number of the round, counted from 0.")
_SENDER = Column(name="sender", sql="INTEGER", meaning="Server that sends its model.")
_RECEIVER = Column(name="receiver", sql="INTEGER", meaning="Server that receives the model.")

ROUNDS = Table("rounds", "round", ROUND_COLUMNS, ("t",))
SERVERS = _table(
    "servers",
    "server and round",
    (
        _T,
        Column(name="server", sql="INTEGER", meaning="Number of the server."),
        Column(name="accuracy", sql="REAL", unit="%", meaning="Its validation accuracy after the merge."),
        Column(name="num_samples", sql="INTEGER", meaning="Samples that it trained on."),
        Column(
            name="away",
            sql="TEXT",
            since=4,
            may_be_unknown=True,
            meaning="Why it took no part in the round: churn, trace (of its availability), battery (too little "
            "charge) or absent (a real machine that was not there); null: it took part.",
        ),
        Column(
            name="charge",
            sql="REAL",
            unit="J",
            since=4,
            may_be_unknown=True,
            meaning="Charge of its battery after the round; null: it is on mains.",
        ),
        Column(
            name="training_loss",
            sql="REAL",
            since=5,
            may_be_unknown=True,
            meaning="Loss of the batches that it trained on, each before its step, mean over its steps; null: it did "
            "not train, or privately.",
        ),
        Column(
            name="validation_loss",
            sql="REAL",
            since=5,
            may_be_unknown=True,
            meaning="Loss of its merged model on validation data, mean over samples.",
        ),
    ),
    ("t", "server"),
)
LINKS = _table(
    "links",
    "drawn link",
    (
        _T,
        _RECEIVER,
        _SENDER,
        Column(name="delivered", sql="INTEGER", meaning="1 if the model arrived, else 0."),
        Column(name="propensity", sql="REAL", meaning="Probability of the link before rounding."),
        Column(name="utility", sql="REAL", meaning="Utility of the link."),
        Column(name="importance", sql="REAL", meaning="Weight of the model in the merge.", may_be_unknown=True),
        Column(
            name="age_seconds",
            sql="REAL",
            unit="s",
            since=4,
            may_be_unknown=True,
            meaning="Simulated time since the sender finished this model, in an asynchronous run.",
        ),
    ),
    ("t", "receiver", "sender"),
)
MATRICES = _table(
    "matrices",
    f"round, of fleets up to {MATRIX_LIMIT} servers",
    (
        _T,
        Column(name="propensity", sql="BLOB", meaning="Probabilities of all links, as float32, row receives."),
        Column(name="utility", sql="BLOB", meaning="Utilities of all links, as float32, row receives."),
    ),
    ("t",),
)
LEDGER = _table(
    "ledger",
    "payment",
    (
        _T,
        Column(
            name="cause",
            sql="TEXT",
            meaning="What the energy was spent on: upload, training, link, probe, merge, idle or exchange.",
        ),
        Column(name="sender", sql="INTEGER", meaning="Server that sent; null where devices did.", may_be_unknown=True),
        Column(name="receiver", sql="INTEGER", meaning="Server that trained or received."),
        Column(name="bits", sql="REAL", unit="bits", meaning="Data that were sent."),
        Column(name="joules", sql="REAL", unit="J", meaning="Energy that it took."),
        Column(name="source", sql="TEXT", meaning="How `joules` is known: modelled, calibrated or measured."),
        Column(
            name="bits_again",
            sql="REAL",
            unit="bits",
            since=2,
            meaning="Of `bits`: data that had been sent before, in transfers that failed or broke off.",
        ),
        Column(
            name="hops",
            sql="INTEGER",
            since=2,
            meaning="1, or 2 where a relay forwarded the model; `bits` and `joules` are those of all hops.",
        ),
        Column(
            name="modelled_joules",
            sql="REAL",
            unit="J",
            since=4,
            may_be_unknown=True,
            meaning="Energy by the price list, where it was also measured; null: as `joules`.",
        ),
        Column(
            name="measured_joules",
            sql="REAL",
            unit="J",
            since=4,
            may_be_unknown=True,
            meaning="Energy by a meter, whether that is what counts or not; null: not measured.",
        ),
        Column(
            name="uncertainty_joules",
            sql="REAL",
            unit="J",
            since=4,
            may_be_unknown=True,
            meaning="How far the measurement may be off, in either direction.",
        ),
        Column(name="meter", sql="TEXT", since=4, may_be_unknown=True, meaning="What measured it, such as rapl."),
    ),
)
TRUST = _table(
    "trust",
    "change of a server, in runs whose policy learns which servers to trust",
    (
        Column(name="t", sql="INTEGER", since=3, meaning="Round after which the row holds, counted from 0."),
        Column(name="server", sql="INTEGER", since=3, meaning="Number of the server."),
        Column(name="state", sql="TEXT", since=3, meaning="State of the server: waiting, member or alone."),
        Column(
            name="group_number",
            sql="INTEGER",
            since=3,
            meaning="Number of its group, which a group keeps while most of its members stay; null: none.",
        ),
        Column(name="reason", sql="TEXT", since=3, meaning="Why its state or group changed, or what happened to it."),
        Column(
            name="verdict_left",
            sql="REAL",
            since=3,
            meaning="Mean verdict between it and the servers that it no longer shares a group with.",
        ),
        Column(
            name="verdict_joined",
            sql="REAL",
            since=3,
            meaning="Mean verdict between it and the servers that it shares a group with only now.",
        ),
    ),
    ("t", "server"),
)
VERDICTS = _table(
    "verdicts",
    f"round after which they were kept, at most about {MOST_VERDICTS} of a run, of fleets up to {MATRIX_LIMIT} servers",
    (
        Column(name="t", sql="INTEGER", since=3, meaning="Number of the round, counted from 0."),
        Column(
            name="verdict",
            sql="BLOB",
            since=3,
            meaning="Verdicts on all links from −1 to 1, as float32, row receives; nan: unknown.",
        ),
    ),
    ("t",),
)
METRICS = _table(
    "metrics",
    "metric and server of a round, in runs whose settings ask for metrics",
    (
        Column(name="t", sql="INTEGER", since=6, meaning="Number of the round, counted from 0."),
        Column(
            name="server",
            sql="INTEGER",
            since=6,
            may_be_unknown=True,
            meaning="Number of the server; null: mean over the servers for which it is defined.",
        ),
        Column(name="metric", sql="TEXT", since=6, meaning="Name of the metric, as in the setting `metrics`."),
        Column(
            name="value",
            sql="REAL",
            since=6,
            may_be_unknown=True,
            meaning="Its value for the merged model on validation data; null: not defined.",
        ),
    ),
    ("t", "server", "metric"),
)
TABLES = {table.name: table for table in (ROUNDS, SERVERS, LINKS, MATRICES, LEDGER, TRUST, VERDICTS, METRICS)}


def current_version() -> int:
    """The version that this hatdfed writes."""
    return max(column.since for table in TABLES.values() for column in table.columns.values())


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
        _bring_up_to_date(self._connection)

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
            unmeasured = EnergyRow._fields.index("modelled_joules")
            self._connection.executemany(LEDGER.insert_first(unmeasured), [row[:unmeasured] for row in rows])

    def read_measured(self) -> list[tuple[str, float, float, int, int, str]]:
        """By cause of which anything was measured: modelled and measured joules of that, its rows, all rows, meters."""
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


def file_version(connection: sqlite3.Connection) -> int:
    """The version of an open file; 0 also of an empty one."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)


def tables_in(connection: sqlite3.Connection) -> list[str]:
    """The tables that a file of its version has."""
    version = file_version(connection)
    return [name for name, table in TABLES.items() if table.since <= version]


def refuse_newer(connection: sqlite3.Connection, path: Path | None) -> None:
    """A file of a later version may mean other things by the same names, so it is neither read nor written."""
    if (version := file_version(connection)) > current_version():
        raise RunFolderError(
            f"The records in {path} are of version {version}, but this hatdfed knows versions up to "
            f"{current_version()}. Update hatdfed to use them."
        )


def _bring_up_to_date(connection: sqlite3.Connection) -> None:
    """Make the tables that are missing and add the columns that an older version lacks: all of it or nothing."""
    version, current = file_version(connection), current_version()
    there = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if version == current and there >= TABLES.keys():
        return
    statements = []
    for table in TABLES.values():
        if table.name not in there:
            statements.append(table.create)
            continue
        newer = [column for column in table.columns.values() if column.since > version]
        statements += [f"ALTER TABLE {table.name} ADD COLUMN {_definition(column)}" for column in newer]
    statements += ["CREATE INDEX IF NOT EXISTS ledger_by_round ON ledger (t)", f"PRAGMA user_version = {current}"]
    connection.executescript(f"BEGIN; {'; '.join(statements)}; COMMIT")


def select_list(connection: sqlite3.Connection, table: str) -> str:
    """The columns of a table as SELECT wants them: NULL for those that the file is too old to have."""
    version, columns = file_version(connection), TABLES[table].columns.values()
    there = {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}
    newer = {column.name for column in columns if column.since > version}
    if lost := [column.name for column in columns if column.name not in there | newer]:
        raise sqlite3.DatabaseError(f"{table} has no {', '.join(lost)}")
    return ", ".join(f"NULL AS {column.name}" if column.name in newer else column.name for column in columns)


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


def read_only_address(path: Path) -> str:
    """How SQLite opens a file that is only read.

    Without a write-ahead log nobody is writing. Then SQLite need not make files of its own beside the database, and a
    folder that is read-only can be read.
    """
    is_still = not path.with_name(f"{path.name}-wal").exists()
    return f"{path.resolve().as_uri()}?{'immutable=1' if is_still else 'mode=ro'}"


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
