"""How fast the machines of a world are: computing, receiving data from devices, sending models."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hatdfed.core.traces import Trace
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


class RateTraces(NamedTuple):
    """Rates that change with simulated time, in place of those of the machines."""

    upload: Trace | None = None  # [N] bits per second
    uplink: Trace | None = None  # [N] bits per second

    def apply(self, machines: Machines, second: float) -> Machines:
        """The machines with the rates of one time."""
        upload = machines.upload_bits_per_second if self.upload is None else self.upload.at(second)
        uplink = machines.uplink_bits_per_second if self.uplink is None else self.uplink.at(second)
        return replace(machines, upload_bits_per_second=upload, uplink_bits_per_second=uplink)


def draw_is_weak(seed: int, num_servers: int, first: int | None = None) -> NDArray[np.bool_]:  # -> [N]
    """Whose machine is the weak one of the two of the price list, with probability ½ (D6).

    The world was made for `first` servers, all of them unless it is said; those that joined later are drawn one by one.
    """
    begun = num_servers if first is None else first
    joined = [stream(seed, "machines", new).random() < 0.5 for new in range(begun, num_servers)]
    return np.concatenate([stream(seed, "machines").random(begun) < 0.5, np.array(joined, dtype=bool)])[:num_servers]
