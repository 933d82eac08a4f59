"""How fast the machines of a world are: computing, receiving data from devices, sending models."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from hatdfed.randomness import stream

Seconds = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Machines:
    """One value for each server; arrays are read-only."""

    sample_seconds: Seconds  # [N] to train on one sample once
    upload_bits_per_second: NDArray[np.float64]  # [N] from all devices of the server together
    uplink_bits_per_second: NDArray[np.float64]  # [N] to all receivers of its model together
    latency_seconds: Seconds  # [N] of a message that the server sends

    def __post_init__(self) -> None:
        for field in fields(self):
            getattr(self, field.name).setflags(write=False)

    @property
    def num_servers(self) -> int:
        """N."""
        return len(self.sample_seconds)


def draw_is_weak(seed: int, num_servers: int, first: int | None = None) -> NDArray[np.bool_]:  # -> [N]
    """Whose machine is the weak one of the two of the price list, with probability ½ (D6).

    The world was made for `first` servers, all of them unless it is said; those that joined later are drawn one by one.
    """
    begun = num_servers if first is None else first
    joined = [stream(seed, "machines", new).random() < 0.5 for new in range(begun, num_servers)]
    return np.concatenate([stream(seed, "machines").random(begun) < 0.5, np.array(joined, dtype=bool)])[:num_servers]
