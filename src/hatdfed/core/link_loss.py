"""Links that lose messages at a rate that nobody is told. Functions of the seed, the round and the link alone."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hatdfed.core.links import Pairs
from hatdfed.randomness import stream


class LinkLoss(NamedTuple):
    """The loss rates of a simulated network: one for each directed link, uniform between `least` and `most`."""

    seed: int
    least: float
    most: float

    def rate(self, receiver: int, sender: int) -> float:
        """Share of the messages along this link that do not arrive."""
        return float(stream(self.seed, "link-loss-rate", int(receiver), int(sender)).uniform(self.least, self.most))

    def find_lost(self, t: int, pairs: Pairs) -> NDArray[np.bool_]:  # [L, 2] receiver, sender -> [L]
        """Which messages of round t do not arrive."""
        links = [(int(receiver), int(sender)) for receiver, sender in pairs]
        chance = [stream(self.seed, "link-loss", t, *link).random() for link in links]
        return np.array([drawn < self.rate(*link) for drawn, link in zip(chance, links, strict=True)], dtype=bool)
