"""One attempt to bring the missing end of a half-downloaded file over HTTP."""

from __future__ import annotations

import http.client
import re
import urllib.error
import urllib.request
from pathlib import Path

from hatdfed.learning.datasets.base import Progress

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
