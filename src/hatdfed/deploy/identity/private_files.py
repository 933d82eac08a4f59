"""Reads and writes small files that must survive a crash, some of which only their owner may read."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from hatdfed.errors import IdentityError

PRIVATE = 0o600
PUBLIC = 0o644
_FOLDER = 0o700


def make_private_folder(path: Path) -> None:
    """Make a folder that only its owner can enter; an existing one keeps its mode, which may be a mounted volume's."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=_FOLDER, exist_ok=True)
    except OSError as error:
        raise IdentityError(
            "disk", f"The folder {path} cannot be made ({error.strerror}). Choose another folder."
        ) from None


def check_writable(path: Path) -> None:
    """Make the folder and try to write to it, before something that works only once (a token) is spent."""
    make_private_folder(path)
    try:
        tempfile.TemporaryFile(dir=path).close()
    except OSError as error:
        raise IdentityError(
            "disk", f"Nothing can be written to {path} ({error.strerror}). Free up space or choose another folder."
        ) from None


def write_durably(path: Path, content: bytes, mode: int) -> None:
    """Write, flush to disk, then rename: readers see the old content or the new one, and never a wrong mode."""
    partial: Path | None = None
    try:
        # mkstemp makes the file 0600 at once and under a fresh name, so nobody can open a key before its mode is set.
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        partial = Path(name)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        partial.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        if partial is not None:
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)
        raise IdentityError(
            "disk",
            f"{path} cannot be written ({error.strerror}). What was there before is untouched; "
            "free up space or choose another folder.",
        ) from None


def sync_folder(path: Path) -> None:
    """Flush a folder to disk, so that files created or removed in it stay so after a crash."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def read_file(path: Path, what: str, remedy: str) -> bytes:
    """Read a file; the error says what is missing and how to get it."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise IdentityError("missing", f"There is no {what} at {path}. {remedy}") from None
    except OSError as error:
        raise IdentityError(
            "unreadable", f"The {what} at {path} cannot be read ({error.strerror}). Check its owner and its mode."
        ) from None


def read_private(path: Path, what: str, remedy: str) -> bytes:
    """Read a file with a secret; one that every user of the machine may read is refused."""
    content = read_file(path, what, remedy)
    # Its group may read it: volumes of a cluster are shared with a group of their own.
    if path.stat().st_mode & 0o007:
        raise IdentityError(
            "exposed", f"The {what} at {path} can be read by every user of this machine. Close it: chmod 600 {path}"
        )
    return content
