"""The files of a data set that is not embedded: where they are found on this machine, and how they are downloaded.

Files are looked for in this order:

1. The folder given as `data_dir` (`--data-dir`), else the one in the environment variable HATDFED_DATA. If the files
   are not in a folder that was named explicitly, that is an error and nothing else is tried.
2. The user's cache folder, where downloads go.
3. Where the operating system's packages install the data set.

In each of these, the files may lie in the folder itself or in one of the usual sub-folders.

A download is resumed where it broke off and verified by its checksum. The bytes go to `NAME.part` beside the final
name; only a complete file whose checksum is right gets that name. The environment variable HATDFED_MIRROR replaces the
official address of every file: with HATDFED_MIRROR=http://host/dir each is requested from http://host/dir/NAME. The
checksums stay the official ones.
"""

from __future__ import annotations

import contextlib
import fcntl
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import platformdirs

from hatdfed.data.datasets.base import Progress
from hatdfed.errors import ConfigError, DataError

DATA_VARIABLE = "HATDFED_DATA"


@dataclass(frozen=True)
class Layout:
    """Which files a data set consists of, and where they usually lie."""

    title: str
    file_names: tuple[str, ...]
    subfolders: tuple[str, ...]
    """The usual ones; a download goes to the first."""
    suffixes: tuple[str, ...] = ("",)
    """What may follow a file name, such as .gz."""
    system_folders: tuple[Path, ...] = ()
    advice: str = ""
    """How to get the files without a download."""


def cache_folder() -> Path:
    """Return the user's folder for downloaded data sets."""
    return platformdirs.user_cache_path("hatdfed") / "datasets"


def find_files(layout: Layout, data_dir: Path | None) -> Mapping[str, Path] | None:
    """Find each file by its name; None when the files would have to be downloaded."""
    if data_dir is not None:
        return _find_in_named_folder(layout, Path(data_dir), "--data-dir")
    if from_environment := os.environ.get(DATA_VARIABLE):
        return _find_in_named_folder(layout, Path(from_environment), DATA_VARIABLE)
    for folder in (cache_folder(), *layout.system_folders):
        if found := find_files_in(folder, layout):
            return found
    return None


def find_folder(layout: Layout, data_dir: Path | None) -> str | None:
    """Return the folder that `find_files` would take the files from, or None; never raises."""
    try:
        found = find_files(layout, data_dir)
    except DataError:
        return None
    return str(found[layout.file_names[0]].parent) if found else None


def find_files_in(folder: Path, layout: Layout) -> Mapping[str, Path] | None:
    """Find each file by its name if one of the usual places under `folder` has them all."""
    for place in _places(folder, layout):
        found = {name: _first_file(place, name, layout.suffixes) for name in layout.file_names}
        present = {name: path for name, path in found.items() if path is not None}
        if len(present) == len(found):
            return present
    return None


def _find_in_named_folder(layout: Layout, folder: Path, origin: str) -> Mapping[str, Path]:
    with contextlib.suppress(RuntimeError):  # ~nobody: there is no such user, so there is no such folder
        folder = folder.expanduser()
    if not _is_folder(folder):
        raise DataError(
            f"The data folder {folder} (from {origin}) is not a folder that can be read. "
            f"Create it and put {layout.title} there, or leave {origin} out to have the data set downloaded."
        )
    found = find_files_in(folder, layout)
    if found is None:
        names = ", ".join(layout.file_names)
        endings = " or ".join(suffix for suffix in layout.suffixes if suffix)
        places = ", ".join(str(place) for place in _places(folder, layout))
        raise DataError(
            f"The data folder {folder} (from {origin}) does not hold {layout.title}. Looked for {names}"
            f"{f' (also ending in {endings})' if endings else ''} in {places}. "
            f"Put all of them into one of these, or leave {origin} out to have the data set downloaded."
        )
    return found


def _places(folder: Path, layout: Layout) -> list[Path]:
    return [folder, *(folder / subfolder for subfolder in layout.subfolders)]


def _first_file(place: Path, name: str, suffixes: tuple[str, ...]) -> Path | None:
    candidates = (place / f"{name}{suffix}" for suffix in suffixes)
    return next((path for path in candidates if _is_file(path)), None)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # in a folder that we have no permission to enter
        return False


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:
        return False


def find_or_download(layout: Layout, data_dir: Path | None, download: Callable[[Path], None]) -> Mapping[str, Path]:
    """Find each file by its name; `download(folder)` is called only if the files are nowhere on this machine."""
    found = find_files(layout, data_dir)
    if found is not None:
        return found
    cache = cache_folder()
    with _hold_lock(cache):
        # Another process may have downloaded the files while this one waited for the lock.
        if find_files_in(cache, layout) is None:
            download(cache / layout.subfolders[0])
    found = find_files_in(cache, layout)
    if found is None:
        raise DataError(f"{layout.title} has just been downloaded to {cache} and is gone. Run the command again.")
    return found


def format_offline_advice(layout: Layout) -> str:
    """Format what to do without a network, as the end of a sentence."""
    names = ", ".join(layout.file_names)
    return f"put {names} into ./data/{layout.subfolders[0]} and pass --data-dir ./data{layout.advice}"


@contextlib.contextmanager
def _hold_lock(folder: Path) -> Iterator[None]:
    """Let one process download at a time: two that appended to the same partial file would corrupt it."""
    with explain_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".lock").open("wb")
    with lock:
        # Some network file systems cannot lock. The checksum still guards the result there.
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


MIRROR_VARIABLE = "HATDFED_MIRROR"
ATTEMPTS = 3
PAUSE_SECONDS = 1.0


@dataclass(frozen=True)
class RemoteFile:
    """A file that can be downloaded, and its checksum."""

    name: str
    base_address: str
    md5: str

    @property
    def address(self) -> str:
        """The address to download from: the official one or the mirror's."""
        base = os.environ.get(MIRROR_VARIABLE) or self.base_address
        if not base.startswith(("http://", "https://")):
            raise ConfigError(f"{MIRROR_VARIABLE} is {base!r}. Use an address that starts with http:// or https://.")
        return f"{base.rstrip('/')}/{self.name}"


def fetch(remote: RemoteFile, folder: Path, *, otherwise: str, progress: Progress | None = None) -> Path:
    """Download the file to `folder` unless it is there; return its path. `otherwise` says what to do offline."""
    target = folder / remote.name
    part = folder / f"{remote.name}.part"
    with explain_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if not target.is_file():
            # A download that was interrupted between its last byte and its renaming needs no network.
            if not part.is_file() or compute_md5(part) != remote.md5:
                _download(remote, part, otherwise, progress)
                _verify(remote, part)
            move_into_place(part, target)
    return target


def move_into_place(part: Path, target: Path) -> None:
    """Rename a complete file to its final name atomically, once its bytes are safely on the disk."""
    with part.open("rb+") as file:
        os.fsync(file.fileno())
    part.replace(target)


def compute_md5(path: Path) -> str:
    """Compute the checksum that the data sets are published with; it detects accidents, not attacks."""
    with path.open("rb") as source:
        return hashlib.file_digest(source, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


@contextlib.contextmanager
def explain_write_errors(folder: Path) -> Iterator[None]:
    """Turn the error of a full disk or a read-only folder into one sentence."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"Cannot write under {folder} ({error.strerror or error}): free up space there or set XDG_CACHE_HOME to "
            "another folder, then run the same command again."
        ) from error


def _download(remote: RemoteFile, part: Path, otherwise: str, progress: Progress | None) -> None:
    address = remote.address
    reason = ""
    for attempt in range(ATTEMPTS):
        time.sleep(PAUSE_SECONDS * attempt)
        try:
            download_rest(address, part, label=remote.name, progress=progress)
            return
        except BrokenOffError as error:
            reason = str(error)
        except UnreachableError as error:
            raise DataError(f"Cannot download {address} ({error}): check the network, or {otherwise}.") from error
    raise DataError(
        f"The download of {address} broke off {ATTEMPTS} times ({reason}). The {count_downloaded(part)} bytes so far "
        f"are kept in {part}: run the same command again to resume, or {otherwise}."
    )


def _verify(remote: RemoteFile, part: Path) -> None:
    found = compute_md5(part)
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
    """The transfer ended early; a retry may help."""


class UnreachableError(Exception):
    """The file cannot be downloaded from this address; an immediate retry will not help."""


def count_downloaded(part: Path) -> int:
    """Return the size of a partial file, 0 if there is none."""
    return part.stat().st_size if part.is_file() else 0


def download_rest(address: str, part: Path, *, label: str, progress: Progress | None = None) -> None:
    """Request the bytes that `part` lacks and append them, or start over if the server sends the whole file.

    `address` must be an http or https address.
    """
    have = count_downloaded(part)
    with _request(address, have) as response:
        start, total = _read_extent(response, have)
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


def _request(address: str, have: int) -> http.client.HTTPResponse:
    headers = {"User-Agent": "hatdfed"} | ({"Range": f"bytes={have}-"} if have else {})
    request = urllib.request.Request(address, headers=headers)  # noqa: S310 (the caller checks the scheme)
    try:
        response: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS)  # noqa: S310
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and have:
            return _request(address, 0)
        kind = BrokenOffError if error.code >= http.HTTPStatus.INTERNAL_SERVER_ERROR else UnreachableError
        raise kind(f"it answered {error.code} {error.reason}") from error
    except urllib.error.URLError as error:
        raise UnreachableError(getattr(error.reason, "strerror", None) or error.reason) from error
    except (OSError, http.client.HTTPException) as error:
        raise BrokenOffError(_describe(error)) from error
    return response


def _read_extent(response: http.client.HTTPResponse, have: int) -> tuple[int, int | None]:
    """Read from the response where in the file it starts, and the size of the whole file if the server says so."""
    if response.status == http.HTTPStatus.PARTIAL_CONTENT:
        stated = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", ""))
        if stated is None:
            return have, None
        return int(stated[1]), None if stated[2] == "*" else int(stated[2])
    length = response.headers.get("Content-Length", "")
    return 0, int(length) if length.isdecimal() else None


def _next_chunk(response: http.client.HTTPResponse) -> bytes:
    # Caught here and not around the loop, where a full disk would look like a lost connection.
    try:
        return response.read(CHUNK_BYTES)
    except (OSError, http.client.HTTPException) as error:
        raise BrokenOffError(_describe(error)) from error


def _describe(error: Exception) -> str:
    return str(error) or type(error).__name__


_COPY_BYTES = 1 << 20
# The last three are raised by tarfile itself, where a header is cut short or claims impossible sizes.
_ARCHIVE_ERRORS = (tarfile.TarError, EOFError, zlib.error, TypeError, ValueError, OverflowError)


def unpack(archive: Path, members: Sequence[str], folder: Path, *, member_bytes: int) -> None:
    """Extract each of `members`, which must be regular files of this size, into `folder` under its base name."""
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
    except _ARCHIVE_ERRORS as error:
        raise _damaged_archive(archive, f"it cannot be unpacked ({error or 'it is cut short'})") from error
    if missing:
        raise _damaged_archive(archive, f"it lacks {', '.join(sorted(missing))}")


def _require_plain(archive: Path, member: tarfile.TarInfo, wanted_bytes: int) -> None:
    if not member.isreg():
        raise _damaged_archive(archive, f"its member {member.name} is not a regular file")
    if member.size != wanted_bytes:
        raise _damaged_archive(archive, f"its member {member.name} has {member.size} bytes, {wanted_bytes} were wanted")


def _write(source: IO[bytes], target: Path, wanted_bytes: int) -> None:
    part = target.with_name(f"{target.name}.part")
    try:
        with explain_write_errors(target.parent):
            target.parent.mkdir(parents=True, exist_ok=True)
            with part.open("wb") as sink:
                shutil.copyfileobj(source, sink, _COPY_BYTES)
            if part.stat().st_size != wanted_bytes:
                raise EOFError(f"{target.name} ends after {part.stat().st_size} of {wanted_bytes} bytes")
            move_into_place(part, target)
    finally:
        part.unlink(missing_ok=True)


def _damaged_archive(archive: Path, reason: str) -> DataError:
    return DataError(f"{archive} is damaged: {reason}. Delete it and run the same command again.")
