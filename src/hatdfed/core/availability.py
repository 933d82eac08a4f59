"""Servers that come and go: who is there in a round, and who can reach whom.

In a simulation that is a function of seed, round and server alone; on real machines it is what the network shows.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hatdfed.core.links import BoolColumn
from hatdfed.randomness import stream


class Presence(NamedTuple):
    """What is known of the servers before a round's links are drawn."""

    active: NDArray[np.bool_]  # [N] who takes part
    reachable: BoolColumn  # [E] which of the links that are considered the network can carry


STRETCH = 10  # rounds that a server is there or away at a time


def is_present(seed: int, t: int, server: int, churn: float) -> bool:
    """Whether the server takes part in round t; `churn` is the chance to be away for a stretch of rounds."""
    return churn == 0 or float(stream(seed, "away", t // STRETCH, server).random()) >= churn


def present(seed: int, t: int, num_servers: int, churn: float) -> NDArray[np.bool_]:  # -> [N]
    """All servers at once."""
    if churn == 0:
        return np.ones(num_servers, dtype=bool)
    return _present(seed, t // STRETCH, num_servers, churn).copy()


@lru_cache(maxsize=4)  # a stretch is asked for many times
def _present(seed: int, stretch: int, num_servers: int, churn: float) -> NDArray[np.bool_]:
    return np.array([is_present(seed, stretch * STRETCH, server, churn) for server in range(num_servers)])
