"""Named points at which a process can be made to die, so that tests can check what it leaves behind.

`HATDFED_FAILPOINT=after-plan-commit` ends the process there at once, as a power cut would; `name:3` at the third time.
Tests that simulate several processes in one are told of every point that is reached.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Iterator

COORDINATOR_POINTS = (  # in the order of a round
    "before-plan-commit",
    "after-plan-commit",
    "before-announce",
    "half-announced",
    "after-first-report",
    "after-reports",
    "before-learn",
    "before-state-commit",  # between the record and the journal
    "after-state-commit",
)
_VARIABLE = "HATDFED_FAILPOINT"
_reached: Counter[str] = Counter()
_watcher: Callable[[str], None] | None = None


def failpoint(name: str) -> None:
    """End the process at once if the environment names this point."""
    if _watcher is not None:
        _watcher(name)
    wanted = os.environ.get(_VARIABLE)
    if wanted is None:
        return
    point, _, count = wanted.partition(":")
    _reached[name] += point == name
    if point == name and _reached[name] >= int(count or 1):
        os._exit(137)


@contextlib.contextmanager
def watched(watcher: Callable[[str], None]) -> Iterator[None]:
    """Call `watcher` with the name of every point that is reached while the context is open."""
    global _watcher
    before, _watcher = _watcher, watcher
    try:
        yield
    finally:
        _watcher = before
