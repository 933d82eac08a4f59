"""The coordinator's durable state, in SQLite: on disk before any edge is told.

A plan is committed before it is announced, and what a round taught is committed with the number of the next round. So a
coordinator that is killed at any moment goes on with the same topologies: a plan in the journal is announced again, and
one that is not there has not been seen by anybody. A lock keeps a second coordinator off the same journal.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import sqlite3
import threading
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from hatdfed.core.coordinator import CoordinatorState, read_state
from hatdfed.core.effort import Effort
from hatdfed.core.links import LinkTable
from hatdfed.core.policies.base import make_draw
from hatdfed.core.round import Presence, RoundPlan
from hatdfed.errors import RunFolderError
from hatdfed.jsonable import from_jsonable, to_jsonable
from hatdfed.runs.records.schema import SQLITE_ERRORS, read_only_address

_SCHEMA = """
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS members (place INTEGER PRIMARY KEY, name TEXT UNIQUE NOT NULL, accuracy REAL);
CREATE TABLE IF NOT EXISTS plans (t INTEGER PRIMARY KEY, plan TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS states (t INTEGER PRIMARY KEY, state TEXT NOT NULL);
"""
_CACHE_KIB = 64  # of pages in memory: old plans are hardly ever read again
_KEPT_STATES = 2  # the one to go on from and the one before it
_KINDS: dict[str, type] = {"run": str, "settings": str, "version": str, "epoch": int, "manifest": dict, "drained": list}


class Journal:
    """One run's journal; the process that has it open is its only writer."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = _acquire_lock(path.with_suffix(".lock"))
        self._mutex = threading.Lock()  # the main loop and the hub both write
        try:
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        except SQLITE_ERRORS as error:
            self._lock.close()
            raise self._make_error(error) from None
        try:
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            self._db.execute(f"PRAGMA cache_size=-{_CACHE_KIB}")
            self._db.executescript(_SCHEMA)
            self._check()
        except SQLITE_ERRORS as error:
            self.close()
            raise self._make_error(error) from None

    def close(self) -> None:
        """Close the file and release the lock."""
        self._db.close()
        self._lock.close()

    def read_fact(self, name: str) -> Any:
        """Read a value that holds for the whole run; None if it was never written."""
        row = self._fetch_one("SELECT value FROM facts WHERE name = ?", name)
        if row is None:
            return None
        value = self._read_fact(str(row[0]))
        if not isinstance(value, _KINDS.get(name, object)):
            raise self.make_damage_error(f"the entry {name} is damaged")
        return value

    def write_fact(self, name: str, value: Any) -> None:
        """Write a value that holds for the whole run."""
        self.write_facts({name: value})

    def write_facts(self, facts: Mapping[str, Any]) -> None:
        """Write several values, all of them or none."""
        statement = "INSERT OR REPLACE INTO facts VALUES (?, ?)"
        self._write([(statement, (name, _seal(value))) for name, value in facts.items()])

    def read_members(self) -> list[tuple[str, float | None]]:
        """Read names and first accuracies by index; the accuracy is None for a member that was never ready."""
        rows = self._fetch_all("SELECT name, accuracy FROM members ORDER BY place")
        if not all(isinstance(name, str) and isinstance(accuracy, float | None) for name, accuracy in rows):
            raise self.make_damage_error("the list of members is damaged")
        return [(name, accuracy) for name, accuracy in rows]

    def add_member(self, index: int, name: str) -> None:
        """Add a member; it keeps its index for good."""
        self._write([("INSERT INTO members VALUES (?, ?, NULL)", (index, name))])

    def set_first_accuracy(self, index: int, accuracy: float) -> None:
        """Write the accuracy that a member had when it was first ready; later ones change nothing."""
        self._write([("UPDATE members SET accuracy = ? WHERE place = ? AND accuracy IS NULL", (accuracy, index))])

    def read_plan(self, t: int) -> RoundPlan | None:
        """Read the plan of round t; None if none was committed."""
        row = self._fetch_one("SELECT plan FROM plans WHERE t = ?", t)
        return None if row is None else _plan_from_json(t, self._unseal(row[0]))

    def has_plan(self, t: int) -> bool:
        """Whether the plan of round t was committed."""
        return self._fetch_one("SELECT 1 FROM plans WHERE t = ?", t) is not None

    def commit_plan(self, plan: RoundPlan, state: CoordinatorState) -> None:
        """Commit the plan of a round and the state that it was drawn from, which has grown if servers joined."""
        self._write(
            [
                ("INSERT INTO plans VALUES (?, ?)", (plan.t, _seal(_plan_to_json(plan)))),
                ("INSERT OR REPLACE INTO states VALUES (?, ?)", (state.t, _seal(to_jsonable(state)))),
            ]
        )

    def read_links(self) -> list[list[tuple[int, int]]]:
        """Read the committed topologies in order, as pairs of receiver and sender."""
        rows = self._fetch_all("SELECT t, plan FROM plans ORDER BY t")
        plans = [_plan_from_json(t, self._unseal(text)) for t, text in rows]
        return [[(i, j) for i, j in plan.draw.topology.pairs.tolist()] for plan in plans]

    def read_state(self, template: CoordinatorState) -> CoordinatorState | None:
        """Read the state to go on from, in the shapes of `template`; None before the first round."""
        row = self._fetch_one("SELECT state FROM states ORDER BY t DESC LIMIT 1")
        return None if row is None else read_state(self._unseal(row[0]), template)

    def read_next_round(self) -> int:
        """Read the number of the first round that is not done."""
        (t,) = self._fetch_one("SELECT COALESCE(MAX(t), 0) FROM states")
        return int(t)

    def commit_state(self, state: CoordinatorState) -> None:
        """Commit the state after a round: the rounds before `state.t` are done."""
        self._write(
            [
                ("INSERT OR REPLACE INTO states VALUES (?, ?)", (state.t, _seal(to_jsonable(state)))),
                ("DELETE FROM states WHERE t <= ?", (state.t - _KEPT_STATES,)),
            ]
        )

    def verify(self) -> None:
        """Read every entry; damage raises an error."""
        for (name,) in self._fetch_all("SELECT name FROM facts"):
            self.read_fact(name)
        self.read_members()
        for table, column in (("plans", "plan"), ("states", "state")):
            for (text,) in self._fetch_all(f"SELECT {column} FROM {table}"):  # noqa: S608 (our own names)
                self._unseal(text)

    def _check(self) -> None:
        (result,) = self._db.execute("PRAGMA quick_check").fetchone()
        if result != "ok":
            raise sqlite3.DatabaseError(str(result))

    def _write(self, statements: list[tuple[str, tuple[Any, ...]]]) -> None:
        with self._mutex:
            try:
                self._db.execute("BEGIN IMMEDIATE")
                for text, values in statements:
                    self._db.execute(text, values)
                self._db.execute("COMMIT")
            except SQLITE_ERRORS as error:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise self._make_error(error) from None

    def _fetch_one(self, text: str, *values: Any) -> Any:
        rows = self._fetch_all(text, *values)
        return rows[0] if rows else None

    def _fetch_all(self, text: str, *values: Any) -> list[Any]:
        try:
            with self._mutex:
                return self._db.execute(text, values).fetchall()
        except SQLITE_ERRORS as error:
            raise self._make_error(error) from None

    def _read_fact(self, text: str) -> Any:
        """Read a fact; version 0.1 wrote facts without a digest."""
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return self._unseal(text)

    def _unseal(self, text: str) -> Any:
        """Parse an entry after checking its digest: SQLite does not notice all damage."""
        digest, _, content = str(text).partition(" ")
        if digest != _digest(content):
            raise self.make_damage_error("an entry is damaged")
        return json.loads(content)

    def make_damage_error(self, what: str) -> RunFolderError:
        """Make the error for content that cannot be what was written."""
        return self._make_error(sqlite3.DatabaseError(what))

    def _make_error(self, error: Exception) -> RunFolderError:
        return RunFolderError(
            f"The coordinator's journal {self.path} cannot be used ({error}). Nothing that was announced is lost; see "
            "that the disk has free space and the file is undamaged, then start the coordinator again. A damaged file "
            "is replaced from a backup (`hatdfed restore`)."
        )


def read_run_name(path: Path) -> str | None:
    """Read the name of a journal's run without locking it; None if there is no journal, or none that can be read."""
    if path.is_symlink() or not path.is_file():
        return None
    try:
        with closing(sqlite3.connect(read_only_address(path), uri=True)) as database:
            row = database.execute("SELECT value FROM facts WHERE name = 'run'").fetchone()
        name = None if row is None else json.loads(str(row[0]).rpartition(" ")[2])
    except (*SQLITE_ERRORS, ValueError, RecursionError):
        return None
    return name if isinstance(name, str) else None


def _acquire_lock(path: Path) -> TextIO:
    """Open and lock the lock file; closing it, or the death of the process, releases the lock."""
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


def _seal(content: Any) -> str:
    """Write an entry as its digest and its JSON text."""
    text = json.dumps(content)
    return f"{_digest(text)} {text}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:32]


def _plan_to_json(plan: RoundPlan) -> dict[str, Any]:
    """Write a plan as matrices, the format of journals since version 0.1."""
    draw, presence = plan.draw, plan.presence
    propensity = draw.links.to_dense(draw.propensity)
    arrays = {"links": draw.topology.links, "propensity": propensity, "mixing": draw.mixing_matrix}
    if presence is not None:
        arrays |= {"active": presence.active, "reachable": draw.links.to_dense(presence.reachable)}
    if plan.effort is not None:
        arrays |= plan.effort._asdict()
    return {name: to_jsonable(array) for name, array in arrays.items()}


def _plan_from_json(t: int, text: dict[str, Any]) -> RoundPlan:
    array: Any = np.zeros(0)
    read: dict[str, Any] = {name: None if data is None else from_jsonable(data, array) for name, data in text.items()}
    links = LinkTable.all_of(len(read["links"]))
    mixing = None if read["mixing"] is None else links.from_dense(read["mixing"])
    draw = make_draw(links, links.from_dense(read["links"]), links.from_dense(read["propensity"]), mixing)
    presence = Presence(read["active"], links.from_dense(read["reachable"])) if "active" in read else None
    effort = Effort(read["passes"], read["asks"]) if "passes" in read else None
    return RoundPlan(t, draw, presence, effort)
