"""Everybody trains in every round, as in the paper; and the same with another number of passes for each machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hatdfed.core.effort import MOST_PASSES, Effort, full_effort
from hatdfed.core.training.base import Stateless, TrainingContext
from hatdfed.errors import ConfigError


@dataclass(frozen=True)
class Always(Stateless):
    """Everybody trains on new data in every round."""

    name: ClassVar[str] = "always"

    def propose(self, state: object, context: TrainingContext, rng: np.random.Generator) -> Effort:
        """The paper's effort."""
        return full_effort(context.num_servers, context.passes)


@dataclass(frozen=True)
class ByPrice(Stateless):
    """Everybody trains in every round; machines whose training costs more than the mean make fewer passes."""

    name: ClassVar[str] = "by-price"

    cheap: int = 2  # passes of servers whose training costs no more than the mean
    dear: int = 1  # passes of the others

    def __post_init__(self) -> None:
        if not 0 <= self.dear <= self.cheap or not 0 < self.cheap <= MOST_PASSES:
            raise ConfigError(
                f"training.cheap is {self.cheap} and training.dear {self.dear}, but dear machines make no more passes "
                f"than cheap ones, which make 1 to {MOST_PASSES}."
            )

    def find_most_passes(self, passes: int) -> int:
        """The passes of a cheap machine, which makes the most."""
        return self.cheap

    def propose(self, state: object, context: TrainingContext, rng: np.random.Generator) -> Effort:
        """The same in every round."""
        is_dear = context.training_joules > context.training_joules.mean() * (1 + 1e-9)
        passes = np.where(is_dear, self.dear, self.cheap)
        return Effort(passes, passes > 0)
