"""The tables of a run's database, and what a file of an older version lacks of them.

The file has a version. Version 0 is what hatdfed 0.1.0 wrote. Every column says which version brought it, so a file can
be brought up to date by adding what its version lacks, and a file that is only read has NULL there.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from hatdfed.errors import RunFolderError
from hatdfed.runs.round_row import ROUND_COLUMNS, Column
from hatdfed.runs.trust_log import MOST_VERDICTS

# Probabilities and utilities of all links are kept for fleets up to this size; beyond it only those of drawn links.
MATRIX_LIMIT = 256

SQLITE_ERRORS = (sqlite3.Error, UnicodeDecodeError)  # the latter where a message quotes a damaged file


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


def bring_up_to_date(connection: sqlite3.Connection) -> None:
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


def read_only_address(path: Path) -> str:
    """How SQLite opens a file that is only read.

    Without a write-ahead log nobody is writing. Then SQLite need not make files of its own beside the database, and a
    folder that is read-only can be read.
    """
    is_still = not path.with_name(f"{path.name}-wal").exists()
    return f"{path.resolve().as_uri()}?{'immutable=1' if is_still else 'mode=ro'}"
