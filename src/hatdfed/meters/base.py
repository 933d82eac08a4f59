"""What every meter gives: readings that name their source, their window and how far they may be wrong.

A meter opens windows, and a window that is closed gives a reading. What cannot be measured is an `EnergyMeterError`
with the reason and the remedy: no meter replaces a figure that it cannot read by another.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple, Protocol

from hatdfed.errors import EnergyMeterError

RAPL, NVML, HWMON, EXTERNAL, ESTIMATE = "rapl", "nvml", "hwmon", "external", "estimate"
SOURCES = {
    NVML: "energy counter of NVIDIA GPUs",
    RAPL: "energy counters of Intel and AMD processors",
    HWMON: "power sensors of the board, such as INA3221 on Jetson modules",
    EXTERNAL: "a meter outside the machine, read by a command or over HTTP",
    ESTIMATE: "stated watts multiplied by processor time: not a measurement",
}


class Reading(NamedTuple):
    """The energy of one window."""

    joules: float  # that count as this process's: less the idle power, times its share
    uncertainty: float  # joules, in either direction
    seconds: float
    source: str  # one of `SOURCES`
    domains: tuple[str, ...]  # what was added up, such as package-0 and dram
    gross_joules: float  # of these domains, before anything is subtracted
    idle_watts: float = 0.0  # that were subtracted
    share: float = 1.0  # of the rest that counts as this process's

    @property
    def gross_watts(self) -> float:
        """Mean power, before anything was subtracted."""
        return self.gross_joules / self.seconds

    @property
    def is_measured(self) -> bool:
        """Whether a sensor was read."""
        return self.source != ESTIMATE


class Window(Protocol):
    """A measurement that has begun."""

    def stop(self) -> Reading:
        """End it; raises `EnergyMeterError` if what was read makes no sense."""


class Meter(Protocol):
    """Something that measures energy."""

    @property
    def source(self) -> str:
        """One of `SOURCES`."""

    @property
    def domains(self) -> tuple[str, ...]:
        """What it adds up."""

    @property
    def idle_watts(self) -> float:
        """Power of the idle machine that is subtracted; 0 until it was measured."""

    def start(self) -> Window:
        """Open a window."""

    def with_idle(self, watts: float) -> Meter:
        """Return the same meter, which subtracts the power of the idle machine."""


@contextmanager
def metered(meter: Meter) -> Iterator[list[Reading]]:
    """Measure what is done in a `with` block: the list has one reading after it, or none if the block raised."""
    readings: list[Reading] = []
    window, is_done = meter.start(), False
    try:
        yield readings
        is_done = True
    finally:
        if is_done:
            readings.append(window.stop())
        else:
            _abandon(window)


def _abandon(window: Window) -> None:
    """Stop what a window does in the background; its reading does not matter."""
    try:
        window.stop()
    except EnergyMeterError:
        return


def attribute(gross: Reading, idle_watts: float, share: float) -> Reading:
    """What counts as this process's: less the idle power, times its share of the processor time."""
    above_idle = max(0.0, gross.gross_joules - idle_watts * gross.seconds)
    return gross._replace(
        joules=share * above_idle, uncertainty=share * gross.uncertainty, idle_watts=idle_watts, share=share
    )
