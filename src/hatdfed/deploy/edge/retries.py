"""How long a transfer that breaks off is tried again: as long as it gets further."""

from __future__ import annotations

import asyncio
import random
import time

from hatdfed.deploy.transport.frames import MAX_SENDS

_FACTOR = 2.0  # times the idle time: for so long a peer that does not answer is called again


class Retries:
    """Counts the attempts of one transfer."""

    def __init__(self, until: float, idle_seconds: float) -> None:
        self._until = until
        self._patience = _FACTOR * idle_seconds
        self._last_moved = time.monotonic()
        self._reached = 0  # bytes that were there at the receiver after the best attempt
        self._wasted = 0  # attempts since then that sent something in vain
        self.count = 0

    @property
    def is_allowed(self) -> bool:
        """Whether another attempt may send anything."""
        return self._wasted < MAX_SENDS

    def note_reached(self, num_bytes: int) -> None:
        """Note how many bytes are at the receiver; more than before make up for failures."""
        if num_bytes > self._reached:
            self._reached, self._wasted = num_bytes, 0

    def note_failure(self, *, has_sent: bool) -> None:
        """Note that an attempt has failed, perhaps after it had sent something."""
        self.count += 1
        if has_sent:
            self._wasted += 1
            self._last_moved = time.monotonic()

    async def wait(self, *, is_early: bool = False) -> bool:
        """Wait a little; returns whether to try again: longer for a peer whose round has not begun than for others."""
        if not is_early and time.monotonic() > self._last_moved + self._patience:
            return False
        await asyncio.sleep(0.2 + 0.6 * random.random())  # noqa: S311 (so that not all try again at once)
        return time.monotonic() < self._until
