"""Join tokens: each is for one node, works once, and expires.

A token is shown once, to the operator who makes it. Only its SHA-256 is stored; a token has 256 random bits, so no
slower hash is needed. All times are the coordinator's, so the clock of an edge does not matter.
"""

from __future__ import annotations

import hashlib
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from hatdfed.deploy.identity.certificates import format_time
from hatdfed.deploy.identity.names import edge_id
from hatdfed.errors import IdentityError

# By this prefix people and secret scanners recognise a leaked token.
_PREFIX = "hatdfed_"
_RANDOM_BYTES = 32
_LONGEST = timedelta(days=30)
_KEPT = timedelta(days=7)
_BUSY_SECONDS = 10.0
_NEW_ONE = "Make a new one with `hatdfed token create`."

_SCHEMA = """
CREATE TABLE IF NOT EXISTS tokens (
    digest TEXT PRIMARY KEY, node TEXT NOT NULL, created REAL NOT NULL, expires REAL NOT NULL, used REAL)
"""


class TokenInfo(NamedTuple):
    """What is stored about a token; the token itself is not."""

    node: str
    created: datetime
    expires: datetime
    used: datetime | None

    def state(self, now: datetime) -> str:
        """Return "open", "used" or "expired"."""
        if self.used is not None:
            return "used"
        return "open" if now < self.expires else "expired"


@dataclass(frozen=True)
class TokenStore:
    """The tokens of one deployment, in a file that several processes may use at the same time."""

    path: Path

    def create(self, node_name: str, ttl: timedelta, now: datetime | None = None) -> str:
        """Create a token by which the edge of this name can join, once, within `ttl`."""
        if not timedelta(0) < ttl <= _LONGEST:
            raise IdentityError(
                "bad-ttl", f"A token would live for {ttl}, but may live for at most {_LONGEST.days} days, and above 0."
            )
        name, made = edge_id(node_name).name, now or datetime.now(UTC)
        token = _PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)
        with self._transaction() as database:
            old = (made - _KEPT).timestamp()
            database.execute("DELETE FROM tokens WHERE expires < ? OR used < ?", (old, old))
            row = (_digest(token), name, made.timestamp(), (made + ttl).timestamp())
            database.execute("INSERT INTO tokens VALUES (?, ?, ?, ?, NULL)", row)
        return token

    def redeem(self, token: str, now: datetime | None = None) -> str:
        """Use a token up and return the node name that it is for. Of two attempts at once, one succeeds."""
        at, digest = now or datetime.now(UTC), _digest(token)
        with self._transaction() as database:
            query = "SELECT node, created, expires, used FROM tokens WHERE digest = ?"
            row = database.execute(query, (digest,)).fetchone()
            if row is None:
                raise IdentityError("unknown-token", f"The join token is not known to this coordinator. {_NEW_ONE}")
            found = _make_info(row)
            if found.used is not None:
                raise IdentityError(
                    "used-token",
                    f"The join token for {found.node} was used at {format_time(found.used)}; it works only once. "
                    f"{_NEW_ONE}",
                )
            if at >= found.expires:
                raise IdentityError(
                    "expired-token",
                    f"The join token for {found.node} expired at {format_time(found.expires)}. {_NEW_ONE}",
                )
            database.execute("UPDATE tokens SET used = ? WHERE digest = ?", (at.timestamp(), digest))
        return found.node

    def list(self) -> list[TokenInfo]:
        """Return all tokens that are still kept, oldest first."""
        with self._transaction() as database:
            rows = database.execute("SELECT node, created, expires, used FROM tokens ORDER BY created, node").fetchall()
        return [_make_info(row) for row in rows]

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Open a transaction that holds the write lock: what is read in it is still true when it commits."""
        try:
            # A connection for each transaction: threads share nothing, and nothing stays open.
            database = sqlite3.connect(self.path, timeout=_BUSY_SECONDS, isolation_level=None)
            try:
                database.execute("PRAGMA journal_mode=WAL")
                # A used token must stay used when the power fails.
                database.execute("PRAGMA synchronous=FULL")
                database.execute("BEGIN IMMEDIATE")
                database.execute(_SCHEMA)
                yield database
                database.execute("COMMIT")
            finally:
                database.close()
        except sqlite3.Error as error:
            raise IdentityError(
                "disk", f"The tokens in {self.path} cannot be read or written ({error}). Check the folder and the disk."
            ) from None


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def _make_info(row: tuple[str, float, float, float | None]) -> TokenInfo:
    node, created, expires, used = row
    return TokenInfo(node, _to_datetime(created), _to_datetime(expires), None if used is None else _to_datetime(used))


def _to_datetime(stamp: float) -> datetime:
    return datetime.fromtimestamp(stamp, UTC)
