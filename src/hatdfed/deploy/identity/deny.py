"""The deny list: names of nodes that are locked out.

At the coordinator it is a text file with one name per line and comments after #. It is read again when it changes, so
that an operator can lock a node out while a run goes on. Edges are told of it.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hatdfed.deploy.identity.names import edge_id
from hatdfed.deploy.identity.private_files import PUBLIC, write_durably
from hatdfed.deploy.protocol import hatdfed_pb2 as pb
from hatdfed.errors import IdentityError

_log = logging.getLogger("hatdfed.deploy.deny")
_edge_log = logging.getLogger("hatdfed.deploy.edge")
_Stamp = tuple[int, int, int]
_ABSENT: _Stamp = (0, 0, 0)
_HEADING = "# Nodes that are locked out, one name a line."


class DenyList:
    """The names that are locked out."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stamp = _ABSENT
        self._names: frozenset[str] = frozenset()
        self.names()  # raises now if the file cannot be read: that must not count as an empty list

    def __contains__(self, name: object) -> bool:
        return name in self.names()

    def names(self) -> frozenset[str]:
        """Return all denied names, from the file as it is now."""
        try:
            stamp = self._read_stamp()
            if stamp != self._stamp:
                self._names = _parse(self.path) if stamp != _ABSENT else frozenset()
                self._stamp = stamp
        except OSError as error:
            if self._stamp == _ABSENT:
                raise self._unreadable(error) from None
            _log.warning(
                "The deny list %s cannot be read (%s); the names read before still count.", self.path, error.strerror
            )
        return self._names

    def check(self, name: str) -> None:
        """Raise `IdentityError` if a node is denied."""
        if name in self:
            raise IdentityError(
                "denied",
                f"The node {name} is on the coordinator's deny list. Let it in with `hatdfed ca allow {name}`.",
            )

    def add(self, name: str) -> None:
        """Deny a node."""
        known = edge_id(name).name
        self._rewrite(lambda lines: lines if known in map(_strip_comment, lines) else [*lines, known])

    def remove(self, name: str) -> None:
        """Allow a node again; other lines and their comments stay."""
        known = edge_id(name).name
        self._rewrite(lambda lines: [line for line in lines if _strip_comment(line) != known])

    def _rewrite(self, change: Callable[[list[str]], list[str]]) -> None:
        with _lock(self.path.parent):
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

    def _read_stamp(self) -> _Stamp:
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return _ABSENT
        return status.st_mtime_ns, status.st_ino, status.st_size


class DeniedPeers:
    """The deny list as an edge knows it: the coordinator sends it with its welcome and whenever it changes."""

    def __init__(self) -> None:
        self.digest = ""
        self._names: frozenset[str] = frozenset()

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def update(self, denied: pb.DenyList) -> None:
        """Replace the list by the coordinator's."""
        names = frozenset(denied.names)
        if new := names - self._names:
            _edge_log.warning("locked out by the coordinator: %s", ", ".join(sorted(new)))
        self.digest, self._names = denied.digest, names


def compute_digest(names: Iterable[str]) -> str:
    """Compute a digest by which an edge and the coordinator notice that they know different lists; empty for none."""
    known = sorted(names)
    return hashlib.sha256("\n".join(known).encode()).hexdigest()[:16] if known else ""


def _strip_comment(line: str) -> str:
    return line.partition("#")[0].strip()


def _parse(path: Path) -> frozenset[str]:
    names = set()
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
        if name := _strip_comment(line):
            try:
                names.add(edge_id(name).name)
            except IdentityError as error:
                _log.warning("Line %d of the deny list %s locks nobody out. %s", number, path, error)
    return frozenset(names)


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, so that two operators who change the list at once do not lose a change."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
