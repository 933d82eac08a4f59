"""Training in every m-th round: for all servers at once, or in turn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hatdfed.core.effort import Effort
from hatdfed.core.training.base import Stateless, TrainingContext
from hatdfed.errors import ConfigError


@dataclass(frozen=True)
class Every(Stateless):
    """A server trains in every `rounds`-th round, beginning with the first."""

    name: ClassVar[str] = "every"

    rounds: int = 2  # m
    staggered: bool = False  # whether servers take turns, so that some train in every round
    ask_every: int = 1  # devices are asked in every so many of a server's training rounds; else it uses what it holds

    def __post_init__(self) -> None:
        if self.rounds < 1 or self.ask_every < 1:
            raise ConfigError(
                f"training.rounds is {self.rounds} and training.ask_every {self.ask_every}, but both are at least 1."
            )

    def propose(self, state: object, context: TrainingContext, rng: np.random.Generator) -> Effort:
        """All servers in a round whose number m divides; staggered, server i is i rounds late."""
        servers = np.arange(context.num_servers)
        trains = (context.t - servers * self.staggered) % self.rounds == 0
        asks = trains & (context.t // self.rounds % self.ask_every == 0)
        return Effort(np.where(trains, context.passes, 0), asks)
