"""Download one file: resumed where it broke off, verified, and put in place in one step.

The bytes go to `NAME.part` beside the final name; only a complete file whose checksum is right gets that name.
The environment variable HATDFED_MIRROR replaces the official address of every file: with
HATDFED_MIRROR=http://host/dir each is asked for at http://host/dir/NAME. The checksums stay the official ones.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hatdfed.errors import ConfigError, DataError
from hatdfed.learning.datasets.base import Progress
from hatdfed.learning.datasets.transfer import (
    BrokenOffError,
    UnreachableError,
    append_rest,
    bytes_so_far,
)

MIRROR_VARIABLE = "HATDFED_MIRROR"
ATTEMPTS = 3
PAUSE_SECONDS = 1.0


@dataclass(frozen=True)
class RemoteFile:
    """A file that can be downloaded and recognised."""

    name: str
    base_address: str
    md5: str

    @property
    def address(self) -> str:
        """Where it is downloaded from now."""
        base = os.environ.get(MIRROR_VARIABLE) or self.base_address
        if not base.startswith(("http://", "https://")):
            raise ConfigError(f"{MIRROR_VARIABLE} is {base!r}. Use an address that starts with http:// or https://.")
        return f"{base.rstrip('/')}/{self.name}"


def fetch(remote: RemoteFile, folder: Path, *, otherwise: str, progress: Progress | None = None) -> Path:
    """The path of the file in `folder`, downloaded unless it is there; `otherwise` says what to do offline."""
    target = folder / remote.name
    part = folder / f"{remote.name}.part"
    with writing_under(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if not target.is_file():
            # A download that was stopped between its last byte and its renaming needs no network.
            if not part.is_file() or md5_of(part) != remote.md5:
                _download(remote, part, otherwise, progress)
                _verify(remote, part)
            publish(part, target)
    return target


def publish(part: Path, target: Path) -> None:
    """Give a complete file its final name, in one step, once its bytes are safely on the disk."""
    with part.open("rb+") as written:
        os.fsync(written.fileno())
    part.replace(target)


def md5_of(path: Path) -> str:
    """The checksum that the publishers of the data sets give; it guards against accidents, not attackers."""
    with path.open("rb") as source:
        return hashlib.file_digest(source, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


@contextlib.contextmanager
def writing_under(folder: Path) -> Iterator[None]:
    """Turn a full disk or a read-only folder into one sentence."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"Cannot write under {folder} ({error.strerror or error}): make room there or set XDG_CACHE_HOME to "
            "another folder, then run the same command again."
        ) from error


def _download(remote: RemoteFile, part: Path, otherwise: str, progress: Progress | None) -> None:
    address = remote.address
    reason = ""
    for attempt in range(ATTEMPTS):
        time.sleep(PAUSE_SECONDS * attempt)
        try:
            append_rest(address, part, label=remote.name, progress=progress)
            return
        except BrokenOffError as error:
            reason = str(error)
        except UnreachableError as error:
            raise DataError(f"Cannot download {address} ({error}): check the network, or {otherwise}.") from error
    raise DataError(
        f"The download of {address} broke off {ATTEMPTS} times ({reason}). The {bytes_so_far(part)} bytes so far are "
        f"kept in {part}: run the same command again to resume, or {otherwise}."
    )


def _verify(remote: RemoteFile, part: Path) -> None:
    found = md5_of(part)
    if found != remote.md5:
        size = part.stat().st_size
        part.unlink()
        raise DataError(
            f"{remote.address} is not the file it should be: {size} bytes with md5 {found} came, md5 {remote.md5} was "
            f"wanted. They were deleted: run the same command again, or name another mirror in {MIRROR_VARIABLE}."
        )
