"""Prices of links that change during a run: each link has its own cheap and dear times."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hatdfed.core.links import Indices
from hatdfed.randomness import stream

_STEPS = (0.7548776662466927, 0.5698402909980532)  # of the phase, from a receiver or a sender to the next (R2 sequence)


class PriceDrift(NamedTuple):
    """One slow wave for each directed link, over the length of a run."""

    seed: int
    most: float  # factor at the dearest time; at the cheapest it is the inverse
    rounds: int

    def factor(self, t: int, receiver: Indices | int, sender: Indices | int) -> NDArray[np.float64]:
        """What the price of each link is multiplied by in round t."""
        start = stream(self.seed, "price-drift").random()
        phase = start + _STEPS[0] * np.asarray(receiver) + _STEPS[1] * np.asarray(sender) + t / self.rounds
        factor: NDArray[np.float64] = self.most ** np.sin(2 * np.pi * phase)
        return factor
