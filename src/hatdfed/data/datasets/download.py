"""Download one file: resumed where it broke off, verified, and put in place in one step.

The bytes go to `NAME.part` beside the final name; only a complete file whose checksum is right gets that name.
The environment variable HATDFED_MIRROR replaces the official address of every file: with
HATDFED_MIRROR=http://host/dir each is asked for at http://host/dir/NAME. The checksums stay the official ones.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import re
import shutil
import tarfile
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from hatdfed.data.datasets.base import Progress
from hatdfed.errors import ConfigError, DataError

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


TIMEOUT_SECONDS = 30.0
CHUNK_BYTES = 1 << 16


class BrokenOffError(Exception):
    """The transfer ended early; trying again may help."""


class UnreachableError(Exception):
    """The file cannot be had at this address; trying again at once will not help."""


def bytes_so_far(part: Path) -> int:
    """How much of a file has come already."""
    return part.stat().st_size if part.is_file() else 0


def append_rest(address: str, part: Path, *, label: str, progress: Progress | None = None) -> None:
    """Ask for the bytes that `part` lacks and append them, or start over if the server sends everything.

    `address` must be an http or https address.
    """
    have = bytes_so_far(part)
    with _ask(address, have) as response:
        start, total = _extent(response, have)
        if start not in (0, have):
            part.unlink()
            raise BrokenOffError(f"it sent the bytes from {start} on when asked for those from {have} on")
        done = start
        with part.open("ab" if start else "wb") as sink:
            while chunk := _next_chunk(response):
                sink.write(chunk)
                done += len(chunk)
                if progress is not None:
                    progress(done, total, label)
    # The standard library reports an early end of the body as a plain end.
    if total is not None and done < total:
        raise BrokenOffError(f"the connection closed after {done} of {total} bytes")


def _ask(address: str, have: int) -> http.client.HTTPResponse:
    headers = {"User-Agent": "hatdfed"} | ({"Range": f"bytes={have}-"} if have else {})
    request = urllib.request.Request(address, headers=headers)  # noqa: S310 (the caller checks the scheme)
    try:
        response: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS)  # noqa: S310
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and have:
            return _ask(address, 0)
        kind = BrokenOffError if error.code >= http.HTTPStatus.INTERNAL_SERVER_ERROR else UnreachableError
        raise kind(f"it answered {error.code} {error.reason}") from error
    except urllib.error.URLError as error:
        raise UnreachableError(getattr(error.reason, "strerror", None) or error.reason) from error
    except (OSError, http.client.HTTPException) as error:
        raise BrokenOffError(_words(error)) from error
    return response


def _extent(response: http.client.HTTPResponse, have: int) -> tuple[int, int | None]:
    """Where in the file the answer starts, and how long the whole file is if the server says so."""
    if response.status == http.HTTPStatus.PARTIAL_CONTENT:
        stated = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", ""))
        if stated is None:
            return have, None
        return int(stated[1]), None if stated[2] == "*" else int(stated[2])
    length = response.headers.get("Content-Length", "")
    return 0, int(length) if length.isdecimal() else None


def _next_chunk(response: http.client.HTTPResponse) -> bytes:
    # Caught here and not around the loop, where a full disk would look like a broken connection.
    try:
        return response.read(CHUNK_BYTES)
    except (OSError, http.client.HTTPException) as error:
        raise BrokenOffError(_words(error)) from error


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__


_COPY_BYTES = 1 << 20


def unpack(archive: Path, members: Sequence[str], folder: Path, *, member_bytes: int) -> None:
    """Write each of `members`, which must be regular files of this size, into `folder` by its last name."""
    missing = set(members)
    try:
        with tarfile.open(archive, "r|gz") as tar:
            for member in tar:
                if member.name in missing:
                    _require_plain(archive, member, member_bytes)
                    source = tar.extractfile(member)
                    if source is not None:
                        _write(source, folder / Path(member.name).name, member_bytes)
                        missing.remove(member.name)
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise _spoilt(archive, f"it cannot be unpacked ({error or 'it is cut short'})") from error
    if missing:
        raise _spoilt(archive, f"it lacks {', '.join(sorted(missing))}")


def _require_plain(archive: Path, member: tarfile.TarInfo, wanted_bytes: int) -> None:
    if not member.isreg():
        raise _spoilt(archive, f"its member {member.name} is not a regular file")
    if member.size != wanted_bytes:
        raise _spoilt(archive, f"its member {member.name} has {member.size} bytes, {wanted_bytes} were wanted")


def _write(source: IO[bytes], target: Path, wanted_bytes: int) -> None:
    part = target.with_name(f"{target.name}.part")
    try:
        with writing_under(target.parent):
            target.parent.mkdir(parents=True, exist_ok=True)
            with part.open("wb") as sink:
                shutil.copyfileobj(source, sink, _COPY_BYTES)
            if part.stat().st_size != wanted_bytes:
                raise EOFError(f"{target.name} ends after {part.stat().st_size} of {wanted_bytes} bytes")
            publish(part, target)
    finally:
        part.unlink(missing_ok=True)


def _spoilt(archive: Path, reason: str) -> DataError:
    return DataError(f"{archive} is spoilt: {reason}. Delete it and run the same command again.")
