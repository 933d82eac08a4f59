"""Parts of a run's records, for a reader that looks often: no lock, no file left behind, nothing held open."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hatdfed.errors import RunFolderError
from hatdfed.runs.records.database import Records, read_only_address

_PATIENCE_SECONDS = 2.0
_CURVES = "t, avg_accuracy, std_accuracy, best_accuracy, worst_accuracy, regret_best_fixed, regret_best_each_round"
_CAUSES = ("upload_joules", "training_joules", "link_joules")
_PROGRESS = ("rounds", "first", "last", *_CAUSES, "seconds", "avg_accuracy")
LEDGER_COLUMNS = ("t", "cause", "sender", "receiver", "bits", "joules", "source")


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
            yield RunReader(connection)
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise RunFolderError(
            f"The records in {path} cannot be read ({error}). Check that the folder is a run of hatdfed."
        ) from None


class RunReader:
    """ProbeTable to one run's database."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def progress(self) -> dict[str, Any]:
        """How far the run is: rounds, first and last `t`, joules by cause, seconds, last mean accuracy."""
        if self._is_new():
            return {**dict.fromkeys(_PROGRESS), "rounds": 0}
        (found,) = self._records(
            "SELECT count(*) AS rounds, min(t) AS first, max(t) AS last, sum(upload_joules) AS upload_joules, "
            "sum(training_joules) AS training_joules, sum(link_joules) AS link_joules, sum(seconds) AS seconds "
            "FROM rounds"
        )
        last = self._records("SELECT avg_accuracy FROM rounds ORDER BY t DESC LIMIT 1")
        return {**found, "avg_accuracy": last[0]["avg_accuracy"] if last else None}

    def accuracies(self) -> list[Any]:
        """Mean accuracy after every round."""
        if self._is_new():
            return []
        return [value for (value,) in self._connection.execute("SELECT avg_accuracy FROM rounds ORDER BY t")]

    def curves(self, first: int, last: int, step: int) -> Records:
        """Rounds from one to another, every `step`-th and the last, with the joules spent so far.

        Sums are made by SQLite: a run that is watched for days shall not be held in memory to draw some hundred points.
        """
        so_far = ", ".join(f"sum({cause}) OVER (ORDER BY t) AS {cause}" for cause in _CAUSES)
        return self._records(
            f"SELECT * FROM (SELECT {_CURVES}, {so_far} FROM rounds WHERE t BETWEEN ? AND ?) "  # noqa: S608 (our own)
            "WHERE (t - ?) % ? = 0 OR t = ? ORDER BY t",
            (first, last, first, step, last),
        )

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
            "LEFT JOIN (SELECT receiver, sender, sum(joules) AS joules FROM ledger WHERE t = ? AND cause = 'link' "
            "GROUP BY receiver, sender) AS spent USING (receiver, sender) WHERE t = ? ORDER BY receiver, sender",
            (t, t),
        )

    def propensity(self, t: int, num_servers: int) -> NDArray[np.float64] | None:  # [N, N]
        """Probability of every link in one round; None where it was not kept for that many servers."""
        row = self._connection.execute("SELECT propensity FROM matrices WHERE t = ?", (t,)).fetchone()
        if row is None or not isinstance(row[0], bytes) or len(row[0]) != 4 * num_servers**2:
            return None
        return np.frombuffer(row[0], dtype="<f4").astype(np.float64).reshape(num_servers, num_servers)

    def ledger(self, t: int, limit: int) -> Records:
        """The ledger of one round, at most so many lines of it."""
        return self._records("SELECT * FROM ledger WHERE t = ? ORDER BY rowid LIMIT ?", (t, limit))

    def ledger_lines(self, after: int, limit: int) -> list[tuple[Any, ...]]:
        """Lines of the whole ledger, their number first: those that follow the line `after`, at most so many."""
        columns = ", ".join(LEDGER_COLUMNS)
        query = f"SELECT rowid, {columns} FROM ledger WHERE rowid > ? ORDER BY rowid LIMIT ?"  # noqa: S608 (our own)
        return self._connection.execute(query, (after, limit)).fetchall()

    def _is_new(self) -> bool:
        """Whether the run that made this file has not made its tables yet."""
        return bool(self._connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,))

    def _records(self, query: str, values: tuple[Any, ...] = ()) -> Records:
        cursor = self._connection.execute(query, values)
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor]
