"""What a coordinator must not forget, in SQLite: on the disk before anybody is told.

A plan is committed before it is announced, and what a round taught is committed with the number of the next round, so a
coordinator that is killed at any moment goes on with the same topologies: a plan that is there is announced again, one
that is not has not been seen by anybody. A lock keeps a second coordinator off the same journal.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import sqlite3
import threading
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from hatdfed.core.availability import Presence
from hatdfed.core.coordinator import CoordinatorState, read_state
from hatdfed.core.links import LinkTable
from hatdfed.core.policies.base import make_draw
from hatdfed.core.round import RoundPlan
from hatdfed.errors import RunFolderError
from hatdfed.jsonable import from_jsonable, to_jsonable

_SCHEMA = """
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS members (place INTEGER PRIMARY KEY, name TEXT UNIQUE NOT NULL, accuracy REAL);
CREATE TABLE IF NOT EXISTS plans (t INTEGER PRIMARY KEY, plan TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS states (t INTEGER PRIMARY KEY, state TEXT NOT NULL);
"""
_KEPT_STATES = 2  # the one to go on from, and the one before it


class Journal:
    """One run's journal; the process that has it open is its only writer."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = _locked(path.with_suffix(".lock"))
        self._turn = threading.Lock()  # the main loop and the station both write
        try:
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        except sqlite3.Error as error:
            self._lock.close()
            raise self._trouble(error) from None
        try:
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            self._db.executescript(_SCHEMA)
            self._check()
        except sqlite3.Error as error:
            self.close()
            raise self._trouble(error) from None

    def close(self) -> None:
        """Release file and lock."""
        self._db.close()
        self._lock.close()

    def fact(self, name: str) -> Any:
        """Something about the whole run; None if it was never said."""
        row = self._one("SELECT value FROM facts WHERE name = ?", name)
        return None if row is None else json.loads(row[0])

    def state_fact(self, name: str, value: Any) -> None:
        """Say something about the whole run."""
        self._write([("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, json.dumps(value)))])

    def members(self) -> list[tuple[str, float | None]]:
        """Names and first accuracies, in the order of their places; None for one that was never ready."""
        return [(name, accuracy) for name, accuracy in self._all("SELECT name, accuracy FROM members ORDER BY place")]

    def add_member(self, place: int, name: str) -> None:
        """A place is taken, for good."""
        self._write([("INSERT INTO members VALUES (?, ?, NULL)", (place, name))])

    def first_accuracy(self, place: int, accuracy: float) -> None:
        """The server in that place is ready for the first time."""
        self._write([("UPDATE members SET accuracy = ? WHERE place = ? AND accuracy IS NULL", (accuracy, place))])

    def plan(self, t: int) -> RoundPlan | None:
        """The plan of round t, if it was committed."""
        row = self._one("SELECT plan FROM plans WHERE t = ?", t)
        return None if row is None else _plan_from(t, self._unsealed(row[0]))

    def commit_plan(self, plan: RoundPlan, state: CoordinatorState) -> None:
        """From now on this is what round t looks like; `state` is what it was drawn from, grown if servers joined."""
        self._write(
            [
                ("INSERT INTO plans VALUES (?, ?)", (plan.t, _sealed(_plan_text(plan)))),
                ("INSERT OR REPLACE INTO states VALUES (?, ?)", (state.t, _sealed(to_jsonable(state)))),
            ]
        )

    def links(self) -> list[list[tuple[int, int]]]:
        """The committed topologies in order, as receivers and senders."""
        plans = [_plan_from(t, self._unsealed(text)) for t, text in self._all("SELECT t, plan FROM plans ORDER BY t")]
        return [[(i, j) for i, j in plan.draw.topology.pairs.tolist()] for plan in plans]

    def state(self, like: CoordinatorState) -> CoordinatorState | None:
        """Where to go on; None before the first round. `like` has the shape of the policy's state."""
        row = self._one("SELECT state FROM states ORDER BY t DESC LIMIT 1")
        return None if row is None else read_state(self._unsealed(row[0]), like)

    def next_round(self) -> int:
        """The first round that is not done."""
        (t,) = self._one("SELECT COALESCE(MAX(t), 0) FROM states")
        return int(t)

    def commit_state(self, state: CoordinatorState) -> None:
        """The rounds before `state.t` are done."""
        self._write(
            [
                ("INSERT OR REPLACE INTO states VALUES (?, ?)", (state.t, _sealed(to_jsonable(state)))),
                ("DELETE FROM states WHERE t <= ?", (state.t - _KEPT_STATES,)),
            ]
        )

    def _check(self) -> None:
        (verdict,) = self._db.execute("PRAGMA quick_check").fetchone()
        if verdict != "ok":
            raise sqlite3.DatabaseError(str(verdict))

    def _write(self, statements: list[tuple[str, tuple[Any, ...]]]) -> None:
        with self._turn:
            try:
                self._db.execute("BEGIN IMMEDIATE")
                for text, values in statements:
                    self._db.execute(text, values)
                self._db.execute("COMMIT")
            except sqlite3.Error as error:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise self._trouble(error) from None

    def _one(self, text: str, *values: Any) -> Any:
        rows = self._all(text, *values)
        return rows[0] if rows else None

    def _all(self, text: str, *values: Any) -> list[Any]:
        try:
            with self._turn:
                return self._db.execute(text, values).fetchall()
        except sqlite3.Error as error:
            raise self._trouble(error) from None

    def _unsealed(self, text: str) -> Any:
        """What was written, if it is still that: SQLite does not notice every damage."""
        seal, _, content = text.partition(" ")
        if seal != _seal(content):
            raise self._trouble(sqlite3.DatabaseError("an entry is damaged"))
        return json.loads(content)

    def _trouble(self, error: sqlite3.Error) -> RunFolderError:
        return RunFolderError(
            f"The coordinator's journal {self.path} cannot be used ({error}). Nothing that was announced is lost; see "
            "that the disk has room and the file is whole, then start the coordinator again."
        )


def _locked(path: Path) -> TextIO:
    """The lock file, held until it is closed, also by a kill."""
    try:
        file = path.open("a+", encoding="utf-8")
    except OSError as error:
        raise RunFolderError(f"{path} cannot be written ({error}). Choose another --state folder.") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.seek(0)
        owner = file.read().strip() or "another process"
        file.close()
        raise RunFolderError(
            f"A coordinator already runs on {path.parent} ({owner}). Stop it first, or choose another --state folder."
        ) from None
    file.truncate(0)
    file.write(f"process {os.getpid()}")
    file.flush()
    return file


def _sealed(content: Any) -> str:
    text = json.dumps(content)
    return f"{_seal(text)} {text}"


def _seal(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:32]


def _plan_text(plan: RoundPlan) -> dict[str, Any]:
    """A plan in matrices, as journals have always kept it."""
    draw, presence = plan.draw, plan.presence
    propensity = draw.links.to_dense(draw.propensity)
    arrays = {"links": draw.topology.links, "propensity": propensity, "mixing": draw.mixing}
    if presence is not None:
        arrays |= {"active": presence.active, "reachable": draw.links.to_dense(presence.reachable)}
    return {name: to_jsonable(array) for name, array in arrays.items()}


def _plan_from(t: int, text: dict[str, Any]) -> RoundPlan:
    array: Any = np.zeros(0)
    read: dict[str, Any] = {name: None if data is None else from_jsonable(data, array) for name, data in text.items()}
    links = LinkTable.all_of(len(read["links"]))
    draw = make_draw(links, links.from_dense(read["links"]), links.from_dense(read["propensity"]), read["mixing"])
    presence = Presence(read["active"], links.from_dense(read["reachable"])) if "active" in read else None
    return RoundPlan(t, draw, presence)
