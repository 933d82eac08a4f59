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
from hatdfed.deploy.identity.names import EDGE_ROLE, NodeId
from hatdfed.deploy.identity.transactions import DamagedRowError, open_transaction
from hatdfed.errors import IdentityError

# By this prefix people and secret scanners recognise a leaked token.
_PREFIX = "hatdfed_"
_RANDOM_BYTES = 32
_LONGEST = timedelta(days=30)
_KEPT = timedelta(days=7)
_NEW_ONE = "Make a new one with `hatdfed token create`."

_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS tokens (
    digest TEXT PRIMARY KEY, node TEXT NOT NULL, created REAL NOT NULL, expires REAL NOT NULL, used REAL,
    role TEXT NOT NULL DEFAULT '{EDGE_ROLE}')
"""


class TokenInfo(NamedTuple):
    """What is stored about a token; the token itself is not."""

    node: str
    created: datetime
    expires: datetime
    used: datetime | None
    role: str

    def state(self, now: datetime) -> str:
        """Return "open", "used" or "expired"."""
        if self.used is not None:
            return "used"
        return "open" if now < self.expires else "expired"


@dataclass(frozen=True)
class TokenStore:
    """The tokens of one deployment, in a file that several processes may use at the same time."""

    path: Path

    def create(self, node_name: str, ttl: timedelta, now: datetime | None = None, *, role: str = EDGE_ROLE) -> str:
        """Create a token by which the edge, or the viewer, of this name can join, once, within `ttl`."""
        if not timedelta(0) < ttl <= _LONGEST:
            raise IdentityError(
                "bad-ttl", f"A token would live for {ttl}, but may live for at most {_LONGEST.days} days, and above 0."
            )
        name, made = NodeId(role, node_name).name, now or datetime.now(UTC)
        token = _PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)
        with self._transaction() as database:
            old = (made - _KEPT).timestamp()
            database.execute("DELETE FROM tokens WHERE expires < ? OR used < ?", (old, old))
            row = (_digest(token), name, made.timestamp(), (made + ttl).timestamp(), role)
            database.execute("INSERT INTO tokens (digest, node, created, expires, role) VALUES (?, ?, ?, ?, ?)", row)
        return token

    def redeem(self, token: str, now: datetime | None = None, *, role: str = EDGE_ROLE) -> str:
        """Use a token up and return the node name that it is for. Of two attempts at once, one succeeds."""
        at, digest = now or datetime.now(UTC), _digest(token)
        with self._transaction() as database:
            query = "SELECT node, created, expires, used, role FROM tokens WHERE digest = ?"
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
            if found.role != role:
                raise IdentityError(
                    "wrong-role", f"The join token for {found.node} is for a {found.role}: `hatdfed {found.role} join`."
                )
            database.execute("UPDATE tokens SET used = ? WHERE digest = ?", (at.timestamp(), digest))
        return found.node

    def list(self) -> list[TokenInfo]:
        """Return all tokens that are still kept, oldest first."""
        with self._transaction() as database:
            query = "SELECT node, created, expires, used, role FROM tokens ORDER BY created, node"
            return [_make_info(row) for row in database.execute(query).fetchall()]

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with open_transaction(self.path, _SCHEMA, "tokens") as database:
            if not any(row[1] == "role" for row in database.execute("PRAGMA table_info(tokens)")):
                database.execute(f"ALTER TABLE tokens ADD COLUMN role TEXT NOT NULL DEFAULT '{EDGE_ROLE}'")  # of 0.1
            yield database


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def _make_info(row: tuple[str, float, float, float | None, str]) -> TokenInfo:
    node, created, expires, used, role = row
    try:
        used_at = None if used is None else _to_datetime(used)
        return TokenInfo(NodeId(role, node).name, _to_datetime(created), _to_datetime(expires), used_at, role)
    except (TypeError, ValueError, OverflowError, OSError, IdentityError):
        raise DamagedRowError("an entry is damaged") from None


def _to_datetime(stamp: float) -> datetime:
    return datetime.fromtimestamp(stamp, UTC)
