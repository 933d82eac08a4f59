"""Which errors of a coordinator may be over at its next start, so that whoever watches over it starts it again."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from hatdfed.errors import RunFolderError, TroubleError

_PASSING = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM}
_PASSING_IN_SQLITE = {
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CANTOPEN,  # too many open files
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
}


@contextmanager
def named_trouble() -> Iterator[None]:
    """A full disk or too few open files become `TroubleError`, with the same sentence; damage does not pass."""
    try:
        yield
    except TroubleError:
        raise
    except RunFolderError as error:
        if _may_pass(error):
            raise TroubleError(str(error)) from None
        raise


def _may_pass(error: BaseException) -> bool:
    cause = error.__context__  # the sentence is raised where the cause was caught
    if isinstance(cause, sqlite3.Error):
        code = getattr(cause, "sqlite_errorcode", None)  # extended: the kind is in its last byte
        return code is not None and code & 0xFF in _PASSING_IN_SQLITE
    return isinstance(cause, OSError) and cause.errno in _PASSING
