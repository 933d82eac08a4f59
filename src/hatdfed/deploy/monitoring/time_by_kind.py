"""Adds up how long something was done, by kind: what a coordinator waits for, what an edge works on."""

from __future__ import annotations

import time
from collections.abc import Callable


class TimeByKind:
    """At most one kind goes on at a time."""

    def __init__(self, *kinds: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seconds: dict[str, float] = dict.fromkeys(kinds, 0.0)  # so that all are exported from the start
        self._kind = ""
        self._since = 0.0

    def begin(self, kind: str) -> None:
        """Begin a kind, which ends the one before; goes on if it is the same."""
        if kind != self._kind:
            self.end()
            self._kind, self._since = kind, self._clock()

    def end(self) -> None:
        """End what goes on, if anything does."""
        if self._kind:
            self._seconds[self._kind] = self._seconds.get(self._kind, 0.0) + self.seconds_so_far
        self._kind = ""

    @property
    def seconds_so_far(self) -> float:
        """How long the present kind has gone on; 0 if none does."""
        return self._clock() - self._since if self._kind else 0.0

    @property
    def totals(self) -> dict[str, float]:
        """The seconds of every kind, with what goes on now."""
        found = dict(self._seconds)
        if self._kind:
            found[self._kind] = found.get(self._kind, 0.0) + self.seconds_so_far
        return found
