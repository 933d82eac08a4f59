"""Training by what a battery holds: all passes while it is well charged, fewer below, none when it is low."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hatdfed.core.effort import Effort
from hatdfed.core.training.base import Stateless, TrainingContext, Vector
from hatdfed.errors import ConfigError


@dataclass(frozen=True)
class ByBattery(Stateless):
    """A server rests at a charge of `low` of its capacity, trains in full from `high` on, and in between accordingly.

    A server that rests still exchanges and merges models, as long as its charge allows. Servers on mains train in full.
    """

    name: ClassVar[str] = "by-battery"
    needs_battery: ClassVar[bool] = True

    low: float = 0.3
    high: float = 0.6

    def __post_init__(self) -> None:
        if not 0 <= self.low < self.high <= 1:
            raise ConfigError(
                f"training.low is {self.low} and training.high {self.high}, but they are shares of a battery's "
                "capacity, and low is below high."
            )

    def propose(self, state: object, context: TrainingContext, rng: np.random.Generator) -> Effort:
        """As many passes as the charge before the round allows, rounded up."""
        level = (_find_level(context) - self.low) / (self.high - self.low)
        passes = np.ceil(context.passes * np.clip(level, 0.0, 1.0)).astype(np.int64)
        return Effort(passes, passes > 0)


def _find_level(context: TrainingContext) -> Vector:
    """Charge as a share of the capacity; 1 on mains, 0 of a battery that holds nothing."""
    if context.charge is None or context.capacity is None:
        return np.ones(context.num_servers)
    has_battery = np.isfinite(context.capacity)
    share = np.where(has_battery, context.charge, 1.0) / np.where(has_battery, np.maximum(context.capacity, 1e-12), 1.0)
    return np.asarray(share, dtype=np.float64)
