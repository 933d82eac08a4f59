"""A history of what coordinator and edges did, as JSON lines, from which tests check what a deployment promises.

`HATDFED_HISTORY=file` makes every process append its events there; without it nothing is recorded. Events of processes
on one machine share the monotonic clock. `hatdfed.testing.promises` says what each event means and checks a history.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

Event = dict[str, Any]
Sink = Callable[[Event], None]

COORDINATOR = "coordinator"  # the node of its events; an edge's node is its index
_VARIABLE = "HATDFED_HISTORY"
_DIGEST_LETTERS = 16


def _append_to(path: Path) -> Sink:
    """Make a sink that appends each event with one write, so that a kill loses no event and cuts none in two."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    return lambda event: _write_line(file, event)


def _write_line(file: int, event: Event) -> None:
    os.write(file, (json.dumps(event, separators=(",", ":")) + "\n").encode())


_sink: Sink | None = _append_to(Path(os.environ[_VARIABLE])) if os.environ.get(_VARIABLE) else None


def is_kept() -> bool:
    """Return whether events are recorded; ask before computing what only the history needs."""
    return _sink is not None


def note(what: str, node: int | str, **fields: Any) -> None:
    """Record an event of a node."""
    if _sink is not None:
        _sink({"at": time.monotonic(), "node": node, "what": what, **fields})


@contextlib.contextmanager
def recorded(sink: Sink | Path) -> Iterator[None]:
    """Record the events of this process while the context is open."""
    global _sink
    before, _sink = _sink, _append_to(sink) if isinstance(sink, Path) else sink
    try:
        yield
    finally:
        _sink = before


def digest_text(text: str) -> str:
    """Compute a short digest of a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_LETTERS]


def digest_numbers(numbers: Any) -> str:
    """Compute a short digest of an array or tensor."""
    return hashlib.sha256(np.ascontiguousarray(numbers).data).hexdigest()[:_DIGEST_LETTERS]


def sent_digest(start: Any) -> str:
    """Read the digest that a sender puts at the start of a message, after the magic bytes."""
    return bytes(start[4:36]).hex()[:_DIGEST_LETTERS]


def received_digest(message: Any) -> str:
    """Compute the same digest from what was received."""
    return hashlib.sha256(memoryview(message)[36:]).hexdigest()[:_DIGEST_LETTERS]


def read_history(path: Path) -> list[Event]:
    """Read a history, in order of time; a last line that was cut by a full disk is left out."""
    events = []
    for line in path.read_text(encoding="utf-8").splitlines():
        with contextlib.suppress(ValueError):
            events.append(json.loads(line))
    return sorted(events, key=lambda event: float(event["at"]))
