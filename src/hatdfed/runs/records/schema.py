"""The tables of a run's database, and the versions of it.

Version 0 is what hatdfed 0.1.0 wrote. Every column says which version brought it, so a file can be brought up to date
by adding what its version lacks, and a file that is only read has NULL there.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from hatdfed.errors import RunFolderError
from hatdfed.runs.round_row import ROUND_COLUMNS, Column


@dataclass(frozen=True)
class Table:
    """One table; what it holds a row for, and by which columns a row is found."""

    name: str
    row_for: str
    columns: Mapping[str, Column]
    key: tuple[str, ...] = ()

    @property
    def insert(self) -> str:
        """A statement that takes one row, in the order of the columns."""
        return f"INSERT INTO {self.name} ({', '.join(self.columns)}) VALUES ({', '.join('?' * len(self.columns))})"  # noqa: S608 (our own names)

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
    ),
    ("t", "receiver", "sender"),
)
MATRICES = _table(
    "matrices",
    "round, of fleets up to 256 servers",
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
        Column(name="cause", sql="TEXT", meaning="What the energy was spent on: upload, training or link."),
        Column(name="sender", sql="INTEGER", meaning="Server that sent; null where devices did.", may_be_unknown=True),
        Column(name="receiver", sql="INTEGER", meaning="Server that trained or received."),
        Column(name="bits", sql="REAL", unit="bits", meaning="Data that were sent."),
        Column(name="joules", sql="REAL", unit="J", meaning="Energy that it took."),
        Column(name="source", sql="TEXT", meaning="Whether the energy was modelled or measured."),
    ),
)
TABLES = {table.name: table for table in (ROUNDS, SERVERS, LINKS, MATRICES, LEDGER)}


def current_version() -> int:
    """The version that this hatdfed writes."""
    return max(column.since for table in TABLES.values() for column in table.columns.values())


def file_version(connection: sqlite3.Connection) -> int:
    """The version of an open file; 0 also of an empty one."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)


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
