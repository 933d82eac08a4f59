"""Windows whose gauge is sampled by a thread, because counters wrap around and power changes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from hatdfed.errors import EnergyMeterError
from hatdfed.meters.base import Reading, attribute
from hatdfed.meters.cpu_share import read_cpu_seconds
from hatdfed.meters.gauges import Gauge

Attribute = Callable[[Reading], Reading]


def start_shared(gauge: Gauge, *, idle_watts: float, stat: Path, seconds: float) -> PolledWindow:
    """Open a window on a whole machine: what is above its idle power is shared by processor time."""
    before = read_cpu_seconds(stat)

    def attribute_share(gross: Reading) -> Reading:
        return attribute(gross, idle_watts, read_cpu_seconds(stat).find_share(before))

    return PolledWindow(gauge, attribute_share, seconds=seconds)


class PolledWindow:
    """Samples a gauge at once, in intervals, and when it is stopped."""

    def __init__(
        self, gauge: Gauge, attribute: Attribute, *, seconds: float, clock: Callable[[], float] = time.monotonic
    ):
        """`attribute` turns what was read into what counts; `seconds` is the time between samples."""
        self._gauge, self._attribute, self._seconds, self._clock = gauge, attribute, seconds, clock
        self._error: EnergyMeterError | None = None
        self._over = threading.Event()
        gauge.sample(clock())
        self._thread = threading.Thread(target=self._poll, name="hatdfed-meter", daemon=True)
        self._thread.start()

    def stop(self) -> Reading:
        """End the window; raises what went wrong in it, if anything did."""
        self._over.set()
        self._thread.join()
        if self._error is not None:
            raise self._error
        self._gauge.sample(self._clock())
        return self._attribute(self._gauge.read())

    def _poll(self) -> None:
        while not self._over.wait(self._seconds):
            try:
                self._gauge.sample(self._clock())
            except EnergyMeterError as error:
                self._error = error
                return
