"""Passes that change over the run: many at first and few at the end, or the reverse; the same for all servers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hatdfed.core.effort import MOST_PASSES, Effort, full_effort
from hatdfed.core.training.base import Stateless, TrainingContext
from hatdfed.errors import ConfigError


@dataclass(frozen=True)
class Taper(Stateless):
    """On average `first` passes at the beginning of the run, `last` at its end, and in between on a straight line.

    A round has a whole number of passes, so that those of all rounds so far add up to the area under the line, rounded
    down. A round without a pass is one of rest.
    """

    name: ClassVar[str] = "taper"

    first: float = 2.0
    last: float = 1.0

    def __post_init__(self) -> None:
        if not (min(self.first, self.last) >= 0 and 0 < max(self.first, self.last) <= MOST_PASSES):  # also refuses NaN
            raise ConfigError(
                f"training.first is {self.first} and training.last {self.last}, but passes are numbers from 0 to "
                f"{MOST_PASSES}, and at least one of the two is above 0."
            )

    def find_most_passes(self, passes: int) -> int:
        """The larger of both, rounded up."""
        return math.ceil(max(self.first, self.last))

    def propose(self, state: object, context: TrainingContext, rng: np.random.Generator) -> Effort:
        """The same for all servers."""
        passes = self._count_passes(context.t + 1, context.horizon) - self._count_passes(context.t, context.horizon)
        effort = full_effort(context.num_servers, passes)
        return effort if passes else effort.rest(np.ones(context.num_servers, dtype=bool))

    def _count_passes(self, rounds: int, horizon: int) -> int:
        """Of the first so many rounds together; a run that was given more rounds goes on with the last number."""
        inside, beyond = min(rounds, horizon), max(0, rounds - horizon)
        area = self.first * inside + (self.last - self.first) * inside**2 / (2 * horizon) + self.last * beyond
        return math.floor(area + 1e-9)
