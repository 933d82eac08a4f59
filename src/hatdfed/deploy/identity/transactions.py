"""Small databases of a coordinator's identities, which several processes may use at the same time."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hatdfed.errors import IdentityError

_BUSY_SECONDS = 10.0


class DamagedRowError(Exception):
    """A row that was not written by this program."""


@contextmanager
def open_transaction(path: Path, schema: str, what: str) -> Iterator[sqlite3.Connection]:
    """Open a transaction that holds the write lock: what is read in it is still true when it commits.

    `what` names the content in error messages.
    """
    try:
        # A connection for each transaction: threads share nothing, and nothing stays open.
        database = sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None)
        try:
            database.execute("PRAGMA journal_mode=WAL")
            # What was committed must stay so when the power fails.
            database.execute("PRAGMA synchronous=FULL")
            database.execute("BEGIN IMMEDIATE")
            database.execute(schema)
            yield database
            database.execute("COMMIT")
        finally:
            database.close()
    except (sqlite3.Error, DamagedRowError) as error:
        raise IdentityError(
            "disk", f"The {what} in {path} cannot be read or written ({error}). Check the folder and the disk."
        ) from None
