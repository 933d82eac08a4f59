"""Trace files: where they are read and written, and how a setting names one.

A setting names a trace by its path. Once settings are resolved, a digest of the file's contents stands behind it, as in
`solar.csv#0a1b2c3d4e5f6789`: runs of the same contents are the same run wherever the file lies, and a run does not go
on with a file that was changed.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from hatdfed.core.traces import Trace, format_trace, parse_trace
from hatdfed.errors import ConfigError, HatdfedError

_LARGEST_FILE = 256 * 2**20  # bytes
_DIGEST_LETTERS = 16


def read_trace(setting: str, named: str, num_servers: int, *, lowest: float = 0.0) -> Trace:
    """The trace that the setting `setting` names, one column for each server; not below `lowest`."""
    path, digest = split_digest(named)
    content = _read_bytes(setting, path)
    if digest and digest != _make_digest(content):
        raise ConfigError(
            f"{setting}: {path} was changed since the run began. Put the old file back, or start a new run."
        )
    try:
        return parse_trace(content.decode("utf-8-sig"), lowest=lowest).spread(num_servers)
    except UnicodeDecodeError:
        raise ConfigError(f"{setting}: {path} is not text in UTF-8. Traces are CSV files (docs/traces.md).") from None
    except ConfigError as error:
        raise ConfigError(f"{setting}: {path} {error}") from None


def write_trace(path: Path, trace: Trace, names: list[str], comments: list[str]) -> None:
    """Write a trace to a new file."""
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(format_trace(trace, names, comments))
    except FileExistsError:
        raise HatdfedError(f"{path} is there already. Name another file, or remove it first.") from None
    except OSError as error:
        raise HatdfedError(f"{path} cannot be written ({error.strerror}). Check the path.") from None


def with_digest(setting: str, named: str) -> str:
    """The whole path with the digest of what the file holds now; one that has a digest keeps it."""
    path, digest = split_digest(named)
    return named if digest else f"{Path(path).resolve()}#{_make_digest(_read_bytes(setting, path))}"


def split_digest(named: str) -> tuple[str, str]:
    """Path and digest of a trace as a setting names it; the digest is empty where there is none yet."""
    path, _, digest = named.rpartition("#")
    is_digest = len(digest) == _DIGEST_LETTERS and set(digest) <= set("0123456789abcdef")
    return (path, digest) if path and is_digest else (named, "")


def _make_digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:_DIGEST_LETTERS]


def _read_bytes(setting: str, path: str) -> bytes:
    try:
        if not Path(path).is_file():
            raise FileNotFoundError(None, "there is no such file")
        if Path(path).stat().st_size > _LARGEST_FILE:
            raise ConfigError(f"{setting}: {path} has more than {_LARGEST_FILE >> 20} MiB. Give it fewer rows.")
        return Path(path).read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"{setting}: {path[:200]} cannot be read ({reason}). Check the path.") from None
