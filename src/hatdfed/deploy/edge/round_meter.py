"""Measures the energy of an edge's rounds, where it has a meter: of its training, and of the exchange of models.

What cannot be measured in a round is not reported, and the log says why. The coordinator then charges what its price
list says, and the ledger shows that.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from hatdfed.core.energy.energy_model import Cause
from hatdfed.deploy.protocol import hatdfed_pb2 as pb
from hatdfed.errors import EnergyMeterError
from hatdfed.meters.base import Meter, Reading, Window

_log = logging.getLogger("hatdfed.deploy.edge")
T = TypeVar("T")


class RoundMeter:
    """The readings of one round at a time; without a meter there are none."""

    def __init__(self, meter: Meter | None) -> None:
        self._meter = meter
        self._open: tuple[Cause, Window] | None = None
        self._readings: dict[Cause, Reading] = {}

    @property
    def is_there(self) -> bool:
        """Whether anything is measured."""
        return self._meter is not None

    def begin(self, cause: Cause) -> None:
        """End what is being measured, and begin with something else."""
        self.end()
        if self._meter is not None:
            window = _attempt(self._meter.start)
            self._open = None if window is None else (cause, window)

    def end(self) -> None:
        """End what is being measured."""
        if self._open is None:
            return
        (cause, window), self._open = self._open, None
        if (reading := _attempt(window.stop)) is not None:
            self._readings[cause] = reading

    def take(self) -> list[pb.Metered]:
        """Return the readings since the last call."""
        self.end()
        readings, self._readings = self._readings, {}
        return [
            pb.Metered(cause=cause, meter=each.source, joules=each.joules, uncertainty=each.uncertainty)
            for cause, each in readings.items()
        ]


def _attempt(work: Callable[[], T]) -> T | None:
    try:
        return work()
    except EnergyMeterError as error:
        _log.warning("energy was not measured: %s", error)
        return None
