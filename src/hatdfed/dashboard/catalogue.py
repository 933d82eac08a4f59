"""Which runs there are: found anew at every look, read anew only where a file has changed."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from pathlib import Path
from typing import NamedTuple

from hatdfed.dashboard.cards import Card, make_card
from hatdfed.runs.records.cleaning import text
from hatdfed.runs.records.search import run_folders

MOST_RUNS = 5000
_WATCHED = ("config.yaml", "results.json", "run.sqlite", "run.sqlite-wal")
_FRESH_SECONDS = 0.5  # many browsers look at once, one walk over the disk serves them
_REST = 5  # times as long as the last walk took; with thousands of runs the disk shall not be walked all the time

Stamp = tuple[tuple[int, int] | None, ...]  # time and size of each watched file


class _Known(NamedTuple):
    path: Path
    stamp: Stamp
    card: Card


class Catalogue:
    """The runs under one folder, each by an identifier; paths never come from outside."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._known: dict[str, _Known] = {}  # no larger than the last walk found
        self._look_again_at = 0.0
        self._lock = threading.Lock()

    def cards(self) -> list[Card]:
        """All runs, the last one written first."""
        known = self._look()
        return sorted((entry.card for entry in known.values()), key=lambda card: -card.written)

    def find(self, run_id: str) -> tuple[Path, Card] | None:
        """Folder and card of a run, or None if there is none of that name."""
        entry = self._look().get(run_id)
        return None if entry is None else (entry.path, entry.card)

    def is_full(self) -> bool:
        """Whether there may be more runs than are listed."""
        return len(self._known) >= MOST_RUNS

    def _look(self) -> dict[str, _Known]:
        with self._lock:
            began = time.monotonic()
            if began >= self._look_again_at:
                self._known = self._walk()
                ended = time.monotonic()
                self._look_again_at = ended + max(_FRESH_SECONDS, _REST * (ended - began))
            return self._known

    def _walk(self) -> dict[str, _Known]:
        found: dict[str, _Known] = {}
        for path in run_folders(self.root, most=MOST_RUNS):
            name = os.path.relpath(path, self.root)
            run_id = hashlib.sha256(os.fsencode(name)).hexdigest()[:16]
            stamp = _stamp(path)
            before = self._known.get(run_id)
            if before is not None and before.stamp == stamp:
                found[run_id] = before
            elif stamp[0] is not None:  # else it is gone since
                shown = text(path.name if name == "." else name)
                found[run_id] = _Known(path, stamp, make_card(path, run_id, shown, _written(stamp)))
        return found


def _stamp(folder: Path) -> Stamp:
    place = str(folder)  # eight hundred paths a look are cheaper as texts
    return tuple(_time_and_size(f"{place}/{name}") for name in _WATCHED)


def _time_and_size(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)  # noqa: PTH116
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def _written(stamp: Stamp) -> float:
    return max(part[0] for part in stamp if part is not None) / 1e9
