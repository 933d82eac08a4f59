"""Nodes that are locked out, by name.

A text file, one name a line; what follows a # is a comment. It is read again when it changes, so that an operator can
lock a node out of a run that goes on.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hatdfed.deploy.identity.names import edge
from hatdfed.deploy.identity.private_files import PUBLIC, write_durably
from hatdfed.errors import IdentityError

_log = logging.getLogger("hatdfed.deploy.deny")
_Stamp = tuple[int, int, int]
_ABSENT: _Stamp = (0, 0, 0)
_HEADING = "# Nodes that are locked out, one name a line."


class DenyList:
    """The names that are locked out."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stamp = _ABSENT
        self._names: frozenset[str] = frozenset()
        self.names()  # a file that cannot be read must not count as an empty one

    def __contains__(self, name: object) -> bool:
        return name in self.names()

    def names(self) -> frozenset[str]:
        """All names, as the file has them now."""
        try:
            stamp = self._stamp_now()
            if stamp != self._stamp:
                self._names = _parsed(self.path) if stamp != _ABSENT else frozenset()
                self._stamp = stamp
        except OSError as error:
            if self._stamp == _ABSENT:
                raise self._unreadable(error) from None
            _log.warning("The deny list %s cannot be read (%s); the names of before count.", self.path, error.strerror)
        return self._names

    def check(self, name: str) -> None:
        """Refuse a node that is locked out."""
        if name in self:
            raise IdentityError(
                "denied",
                f"The node {name} is on the coordinator's deny list. Let it in with `hatdfed ca allow {name}`.",
            )

    def add(self, name: str) -> None:
        """Lock a node out."""
        known = edge(name).name
        self._rewrite(lambda lines: lines if known in map(_name, lines) else [*lines, known])

    def remove(self, name: str) -> None:
        """Let a node in again; comments of other lines stay."""
        known = edge(name).name
        self._rewrite(lambda lines: [line for line in lines if _name(line) != known])

    def _rewrite(self, change: Callable[[list[str]], list[str]]) -> None:
        with _alone_in(self.path.parent):
            try:
                lines = self.path.read_bytes().decode("utf-8", "surrogateescape").splitlines()
            except FileNotFoundError:
                lines = [_HEADING]
            except OSError as error:
                raise self._unreadable(error) from None
            text = "".join(f"{line}\n" for line in change(lines))
            write_durably(self.path, text.encode("utf-8", "surrogateescape"), PUBLIC)

    def _unreadable(self, error: OSError) -> IdentityError:
        return IdentityError(
            "unreadable", f"The deny list {self.path} cannot be read ({error.strerror}). Check its owner and its mode."
        )

    def _stamp_now(self) -> _Stamp:
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return _ABSENT
        return status.st_mtime_ns, status.st_ino, status.st_size


def _name(line: str) -> str:
    return line.partition("#")[0].strip()


def _parsed(path: Path) -> frozenset[str]:
    names = set()
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
        if name := _name(line):
            try:
                names.add(edge(name).name)
            except IdentityError as error:
                _log.warning("Line %d of the deny list %s locks nobody out. %s", number, path, error)
    return frozenset(names)


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Two operators who change the list at once do so one after the other, and no denial is lost."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
