"""When servers train and exchange models, where they do not all wait for each other."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hatdfed.core.links import BoolColumn, FloatColumn, LinkTable
from hatdfed.core.timing.machines import Seconds
from hatdfed.core.timing.round_time import RoundTime


class Pace(Protocol):
    """Decides before a round who trains and which links can be used, and after it how long it took.

    `busy` are the seconds of the round in which servers still train for an earlier one, for a pace that counts them.
    """

    def first_busy(self) -> Seconds | None:  # -> [N]
        """Before the first round; None: nobody counts."""

    def find_training(self, t: int, busy: Seconds | None) -> NDArray[np.bool_]:  # [N] -> [N]
        """Who begins to train in round t."""

    def find_exchanging(self, t: int, busy: Seconds | None) -> NDArray[np.bool_]:  # [N] -> [N]
        """Who may receive models in round t."""

    def find_possible(self, t: int, busy: Seconds | None, links: LinkTable) -> BoolColumn:  # [N] -> [E]
        """Along which links a model can come."""

    def find_ages(self, t: int, links: LinkTable) -> FloatColumn | None:  # -> [E]
        """Seconds since the sender of each link finished the model that it sends; None: it has just done so."""

    def close_round(self, t: int, busy: Seconds | None, time: RoundTime) -> RoundTime:  # [N]
        """The time of a round in which everybody is waited for, as it is at this pace."""

    def find_longest(self) -> float | None:
        """Seconds that a round takes at most; None: as long as the slowest server needs."""

    def next_busy(self, time: RoundTime) -> Seconds | None:  # -> [N]
        """Seconds of the next round in which servers still train for this one."""
