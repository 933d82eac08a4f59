"""Stated watts multiplied by processor time: not a measurement, and labelled as such wherever it is shown."""

from __future__ import annotations

import time
from dataclasses import dataclass

from hatdfed.meters.base import ESTIMATE, Reading

UNCERTAIN_SHARE = 0.5  # stated watts are those of a data sheet, for another load


@dataclass(frozen=True)
class PowerEstimate:
    """A machine that is said to draw `watts_per_core` above idle for each core that computes."""

    watts_per_core: float
    source: str = ESTIMATE
    domains: tuple[str, ...] = ("processor time",)
    idle_watts: float = 0.0

    def start(self) -> EstimateWindow:
        """Open a window."""
        return EstimateWindow(self.watts_per_core)

    def with_idle(self, watts: float) -> PowerEstimate:
        """The same: only what is computed is counted."""
        return self


class EstimateWindow:
    """Counts the processor time of this process."""

    def __init__(self, watts_per_core: float) -> None:
        self._watts = watts_per_core
        self._began, self._cpu = time.monotonic(), time.process_time()

    def stop(self) -> Reading:
        """Return what the processor time would have taken."""
        joules = self._watts * (time.process_time() - self._cpu)
        seconds = time.monotonic() - self._began
        return Reading(joules, UNCERTAIN_SHARE * joules, seconds, ESTIMATE, ("processor time",), joules)
