"""Parts of a run's records, for a reader that looks often: no lock, no file left behind, nothing held open."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hatdfed.core.energy.energy_model import Cause
from hatdfed.errors import RunFolderError
from hatdfed.runs.records.database import Records, read_last_verdicts
from hatdfed.runs.records.schema import (
    METRICS,
    SQLITE_ERRORS,
    TRUST,
    file_version,
    read_only_address,
    refuse_newer,
    select_list,
)
from hatdfed.runs.round_row import ROUND_COLUMNS
from hatdfed.runs.trust_history import TrustHistory, read_changes

_PATIENCE_SECONDS = 2.0


@contextmanager
def reading(path: Path) -> Iterator[RunReader]:
    """A run's database, opened for the length of a `with`; whatever is wrong with it is one sentence."""
    if path.exists() and (path.is_symlink() or not path.is_file()):
        raise RunFolderError(f"The records in {path} are not a plain file, so they are not read.")
    try:
        connection = sqlite3.connect(read_only_address(path), uri=True, timeout=_PATIENCE_SECONDS)
        try:
            connection.execute("PRAGMA trusted_schema=OFF")
            connection.execute("PRAGMA cache_size=-256")  # KiB; nothing is read twice while it is open
            refuse_newer(connection, path)
            yield RunReader(connection)
        finally:
            connection.close()
    except SQLITE_ERRORS as error:
        raise RunFolderError(
            f"The records in {path} cannot be read ({error}). Check that the folder is a run of hatdfed."
        ) from None


class RunReader:
    """Answers questions about one run's database."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def progress(self) -> dict[str, Any]:
        """How far the run is: rounds, first and last `t`, and every figure summed over rounds or of the last one."""
        figures = {name: column for name, column in ROUND_COLUMNS.items() if column.over_rounds is not None}
        if self._is_new():
            return {"rounds": 0, "first": None, "last": None, **dict.fromkeys(figures)}
        sums = ", ".join(f"sum({name}) AS {name}" for name, column in figures.items() if column.over_rounds == "sum")
        rounds = f"(SELECT {select_list(self._connection, 'rounds')} FROM rounds)"  # noqa: S608 (our own names)
        (found,) = self._records(
            f"SELECT count(*) AS rounds, min(t) AS first, max(t) AS last, {sums} FROM {rounds}"  # noqa: S608
        )
        last = self._records(f"SELECT * FROM {rounds} ORDER BY t DESC LIMIT 1")  # noqa: S608
        return {**dict.fromkeys(figures), **(last[0] if last else {}), **found}

    def accuracies(self) -> list[Any]:
        """Mean accuracy after every round."""
        if self._is_new():
            return []
        return [value for (value,) in self._connection.execute("SELECT avg_accuracy FROM rounds ORDER BY t")]

    def curves(self, first: int, last: int, step: int) -> Records:
        """Rounds from one to another, every `step`-th and the last; what is summed over rounds is summed so far.

        Sums are made by SQLite: a run that is watched for days shall not be held in memory to draw some hundred points.
        """
        shown = ", ".join(
            f"sum({name}) OVER (ORDER BY t) AS {name}" if column.over_rounds == "sum" else name
            for name, column in ROUND_COLUMNS.items()
        )
        rounds = f"(SELECT {select_list(self._connection, 'rounds')} FROM rounds WHERE t BETWEEN ? AND ?)"  # noqa: S608
        return self._records(
            f"SELECT * FROM (SELECT {shown} FROM {rounds}) WHERE (t - ?) % ? = 0 OR t = ? ORDER BY t",  # noqa: S608
            (first, last, first, step, last),
        )

    def metrics(self, name: str, first: int, last: int, step: int) -> dict[Any, Any]:
        """Means of one metric over servers, by round: every `step`-th from one to another, and the last."""
        if file_version(self._connection) < METRICS.since:
            return {}
        query = (
            "SELECT t, value FROM metrics WHERE server IS NULL AND metric = ? AND t BETWEEN ? AND ? "
            "AND ((t - ?) % ? = 0 OR t = ?)"
        )
        return dict(self._connection.execute(query, (name, first, last, first, step, last)).fetchall())

    def servers(self, first: int, last: int, step: int = 1) -> Iterator[tuple[Any, Any, Any]]:
        """Round, server and its accuracy, from one round to another: in every `step`-th, and in the last."""
        yield from self._connection.execute(
            "SELECT t, server, accuracy FROM servers WHERE t BETWEEN ? AND ? AND ((t - ?) % ? = 0 OR t = ?)",
            (first, last, first, step, last),
        )

    def links(self, t: int) -> Records:
        """Links of one round with the joules that each took."""
        return self._records(
            "SELECT receiver, sender, delivered, propensity, utility, importance, spent.joules AS joules FROM links "
            "LEFT JOIN (SELECT receiver, sender, sum(joules) AS joules FROM ledger WHERE t = ? AND cause = ? "
            "GROUP BY receiver, sender) AS spent USING (receiver, sender) WHERE t = ? ORDER BY receiver, sender",
            (t, Cause.LINK, t),
        )

    def propensity(self, t: int, num_servers: int) -> NDArray[np.float64] | None:  # [N, N]
        """Probability of every link in one round; None where it was not kept for that many servers."""
        row = self._connection.execute("SELECT propensity FROM matrices WHERE t = ?", (t,)).fetchone()
        if row is None or not isinstance(row[0], bytes) or len(row[0]) != 4 * num_servers**2:
            return None
        return np.frombuffer(row[0], dtype="<f4").astype(np.float64).reshape(num_servers, num_servers)

    def trust(self, limit: int) -> TrustHistory | None:
        """The beliefs of the run's policy, from the first so many rows; None where it learns nothing about servers."""
        if file_version(self._connection) < TRUST.since:
            return None
        columns = select_list(self._connection, "trust")
        rows = self._records(f"SELECT {columns} FROM trust ORDER BY t, rowid LIMIT ?", (limit,))  # noqa: S608
        changes, last = read_changes(rows), read_last_verdicts(self._connection)
        if not changes:
            return None
        return TrustHistory(changes) if last is None else TrustHistory(changes, last[1], last[0])

    def ledger(self, t: int, limit: int) -> Records:
        """The ledger of one round, at most so many lines of it."""
        columns = select_list(self._connection, "ledger")
        query = f"SELECT {columns} FROM ledger WHERE t = ? ORDER BY rowid LIMIT ?"  # noqa: S608 (our own names)
        return self._records(query, (t, limit))

    def ledger_lines(self, after: int, limit: int) -> list[tuple[Any, ...]]:
        """Lines of the whole ledger, their number first: those that follow the line `after`, at most so many."""
        columns = select_list(self._connection, "ledger")
        query = f"SELECT rowid, {columns} FROM ledger WHERE rowid > ? ORDER BY rowid LIMIT ?"  # noqa: S608 (our own)
        return self._connection.execute(query, (after, limit)).fetchall()

    def _is_new(self) -> bool:
        """Whether the run that made this file has not made its tables yet."""
        return bool(self._connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,))

    def _records(self, query: str, values: tuple[Any, ...] = ()) -> Records:
        cursor = self._connection.execute(query, values)
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor]
