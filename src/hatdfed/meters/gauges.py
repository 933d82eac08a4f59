"""The arithmetic of a window: counters of joules that wrap around, sensors of watts that are integrated over time.

Nothing here reads a file or sleeps. `sample` is called from time to time by `PolledWindow`, with the time of the call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from hatdfed.errors import EnergyMeterError
from hatdfed.meters.base import Reading

MOST_WATTS = 2000.0  # more than any processor, card or board draws: so a counter that was reset is found
MOST_MACHINE_WATTS = 20_000.0


class Gauge(Protocol):
    """What one window has read so far."""

    def sample(self, now: float) -> None:
        """Read all domains once."""

    def read(self) -> Reading:
        """What the samples add up to."""


class Counter(NamedTuple):
    """A counter of joules."""

    name: str
    read: Callable[[], float]  # joules since some moment
    wraps_at: float | None = None  # joules after which it begins at 0 again; None: never
    most_watts: float = MOST_WATTS


@dataclass
class CounterGauge:
    """Joules that counters have gone up by."""

    source: str
    counters: Sequence[Counter]
    refresh_seconds: float  # after which a counter has a new value
    _joules: float = 0.0
    _last: list[float] = field(default_factory=list)
    _times: list[float] = field(default_factory=list)

    def sample(self, now: float) -> None:
        """Read all counters; raises `EnergyMeterError` where one was reset or may have wrapped unseen."""
        values = [counter.read() for counter in self.counters]
        if self._last:
            seconds = now - self._times[-1] + self.refresh_seconds
            steps = zip(self.counters, self._last, values, strict=True)
            self._joules += math.fsum(_find_step(counter, last, value, seconds) for counter, last, value in steps)
        self._last, self._times = values, [*self._times[:1], now]

    def read(self) -> Reading:
        """The sum over all counters; each end may be wrong by what is spent between two values of a counter."""
        seconds = self._times[-1] - self._times[0]
        watts = self._joules / seconds if seconds > 0 else 0.0
        names = tuple(counter.name for counter in self.counters)
        return Reading(self._joules, 2 * self.refresh_seconds * watts, seconds, self.source, names, self._joules)


def _find_step(counter: Counter, last: float, value: float, seconds: float) -> float:
    """Joules between two readings of a counter; `seconds` is the longest time that they can stand for."""
    most, end = counter.most_watts * seconds, counter.wraps_at
    if end is not None and most > end:
        raise EnergyMeterError(
            f"The energy counter {counter.name} was not read for {seconds:.0f} s, in which it may have begun again "
            "more than once. Measure again."
        )
    step = value - last if value >= last or end is None else value - last + end
    if not 0 <= step <= most:
        raise EnergyMeterError(
            f"The energy counter {counter.name} went from {last:.6g} to {value:.6g} J in {seconds:.3g} s: somebody has "
            "reset it. Measure again."
        )
    return step


class Sensor(NamedTuple):
    """A sensor of power."""

    name: str
    read: Callable[[], float]  # watts
    most_watts: float = MOST_WATTS


@dataclass
class PowerGauge:
    """Watts of sensors, integrated by the trapezoidal rule."""

    source: str
    sensors: Sequence[Sensor]
    accuracy: float  # of a sensor, as a share of its value
    _joules: float = 0.0
    _unknown: float = 0.0  # joules between the largest and the smallest value of each interval
    _last: float = 0.0
    _times: list[float] = field(default_factory=list)

    def sample(self, now: float) -> None:
        """Read all sensors; raises `EnergyMeterError` where one says what no power can be."""
        watts = 0.0
        for sensor in self.sensors:
            value = sensor.read()
            if not 0 <= value <= sensor.most_watts:
                raise EnergyMeterError(f"The power sensor {sensor.name} says {value:.6g} W, which cannot be.")
            watts += value
        if self._times:
            seconds = now - self._times[-1]
            self._joules += seconds * (watts + self._last) / 2
            self._unknown += seconds * abs(watts - self._last) / 2
        self._last, self._times = watts, [*self._times[:1], now]

    def read(self) -> Reading:
        """The integral; between two samples power may have been anywhere between them, and sensors are not exact."""
        seconds = self._times[-1] - self._times[0]
        names = tuple(sensor.name for sensor in self.sensors)
        uncertainty = self._unknown + self.accuracy * self._joules
        return Reading(self._joules, uncertainty, seconds, self.source, names, self._joules)
