"""Asynchronous rounds: every server trains at its own pace, and merges what has come whenever it is done.

A server's cycle is the time in which it collects a usual round's data, trains on them and fetches a usual number of
models. The schedule of all cycles follows from the machines alone, so it is known before anything is trained. It is cut
into ticks as long as the shortest cycle. All servers whose cycle ends in a tick train together, as a round in which the
others rest: what each of them trains from is the model that it had when its cycle began, since nobody else changes it,
and what it merges is the newest model that others have finished, which may be older than its own.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hatdfed.core.links import BoolColumn, FloatColumn, LinkTable
from hatdfed.core.timing.machines import Seconds
from hatdfed.core.timing.round_time import RoundTime

_ROUNDING = 1e-9  # of a number of cycles: what ends with a tick belongs to it


class OwnPace(NamedTuple):
    """Servers with cycles of different lengths; round t of the run is tick t."""

    cycle: Seconds  # [N]

    @property
    def tick(self) -> float:
        """Seconds of a tick."""
        return float(self.cycle.min())

    def first_busy(self) -> None:
        """A cycle that is not over is no delay."""
        return

    def find_training(self, t: int, busy: Seconds | None) -> NDArray[np.bool_]:  # -> [N]
        """Servers whose cycle ends in this tick: what they have trained since their last one is computed now."""
        return self.find_due(t)

    def find_exchanging(self, t: int, busy: Seconds | None) -> NDArray[np.bool_]:  # -> [N]
        """Servers whose cycle ends in this tick."""
        return self.find_due(t)

    def find_due(self, t: int) -> NDArray[np.bool_]:  # -> [N]
        """Whose cycle ends in tick t."""
        return self.count_cycles(t) > self.count_cycles(t - 1)

    def count_cycles(self, t: int) -> NDArray[np.int64]:  # -> [N]
        """How many cycles each server has finished by the end of tick t."""
        return np.floor((t + 1) * self.tick / self.cycle + _ROUNDING).astype(np.int64)

    def find_possible(self, t: int, busy: Seconds | None, links: LinkTable) -> BoolColumn:  # -> [E]
        """Links to servers that are due, from those that have a newer model than at the receiver's last merge."""
        due = self.find_due(t)
        before = self._find_last_tick(t)  # [N] of each receiver's last merge
        known = (links.at_receivers(before) + 1) * self.tick / links.at_senders(self.cycle)
        has_news = links.at_senders(self.count_cycles(t)) > np.floor(known + _ROUNDING)
        return links.at_receivers(due) & has_news

    def find_ages(self, t: int, links: LinkTable) -> FloatColumn:  # -> [E]
        """Seconds since the sender of each link finished its newest model, at the end of tick t."""
        age = (t + 1) * self.tick - self.count_cycles(t) * self.cycle
        return links.at_senders(np.maximum(0.0, age))

    def close_round(self, t: int, busy: Seconds | None, time: RoundTime) -> RoundTime:
        """A tick takes what it takes, whatever servers did in it."""
        return time._replace(seconds=self.tick)

    def find_longest(self) -> float:
        """Seconds of a tick."""
        return self.tick

    def next_busy(self, time: RoundTime) -> None:
        """A cycle that is not over is no delay."""
        return

    def _find_last_tick(self, t: int) -> NDArray[np.int64]:  # -> [N]
        """The tick in which each server's last cycle before tick t ended; −1 where none has."""
        finished = self.count_cycles(t - 1) * self.cycle / self.tick
        return np.ceil(finished - _ROUNDING).astype(np.int64) - 1
