"""Whether the coordinator answers an edge.

An outage is logged when it begins, then with growing pauses, and when it ends. An edge tries again about every second:
a line for each would fill the disks of a fleet during a long outage.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

_log = logging.getLogger("hatdfed.deploy.edge")
_FIRST_PAUSE_SECONDS = 60.0  # between the first line about an outage and the second; then twice as long each time
_LONGEST_PAUSE_SECONDS = 3600.0


class CoordinatorPresence:
    """Notes when the coordinator answers and when it does not."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.is_connected = False
        self.joins = 0
        self._clock = clock
        self._away_since: float | None = None
        self._next_line = 0.0
        self._pause = _FIRST_PAUSE_SECONDS

    @property
    def is_outage_known(self) -> bool:
        """Whether an outage has been logged that is not over."""
        return self._away_since is not None

    def mark_joined(self) -> None:
        """Note that the coordinator has admitted this edge."""
        self.is_connected = True
        self.joins += 1
        if self._away_since is not None:
            _log.info("the coordinator is back after %.0f s", self._clock() - self._away_since)
        self._away_since, self._pause = None, _FIRST_PAUSE_SECONDS

    def mark_lost(self) -> None:
        """Note that the connection has ended, for whatever reason."""
        self.is_connected = False

    def mark_away(self, reason: str) -> None:
        """Note that an attempt to join has failed."""
        now = self._clock()
        self.is_connected = False
        if self._away_since is None:
            self._away_since, self._next_line = now, now + self._pause
            _log.warning("%s; trying again", reason)
        elif now >= self._next_line:
            _log.warning("%s, for %.0f s now; still trying", reason, now - self._away_since)
            self._pause = min(2 * self._pause, _LONGEST_PAUSE_SECONDS)
            self._next_line = now + self._pause
