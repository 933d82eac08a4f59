"""Where runs are: all run folders under a folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_DEEPEST = 8  # folders below the first; nobody keeps runs deeper, and a walk must end
_WIDEST = 20_000  # entries looked at in one folder


def is_run(folder: Path) -> bool:
    """Whether a folder holds a run of hatdfed."""
    return (folder / "config.yaml").is_file() and (folder / "run.sqlite").is_file()


def run_folders(root: Path, *, most: int) -> list[Path]:
    """Run folders under `root`, or `root` itself, in the order of their names; at most so many.

    Links are not followed: what lies elsewhere was not meant, and a ring of links would have no end.
    """
    found: list[Path] = []
    for folder in _walk(str(root), 0):
        found.append(Path(folder))
        if len(found) >= most:
            break
    return found


def _walk(folder: str, depth: int) -> Iterator[str]:
    try:
        with os.scandir(folder) as entries:
            seen = [entry for entry, _ in zip(entries, range(_WIDEST), strict=False)]
    except OSError:  # gone since, or not ours to read
        return
    names = {entry.name for entry in seen}
    if {"config.yaml", "run.sqlite"} <= names:
        yield folder
        return
    if depth == _DEEPEST:
        return
    for entry in sorted(seen, key=lambda entry: entry.name):
        if not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False):
            yield from _walk(entry.path, depth + 1)
