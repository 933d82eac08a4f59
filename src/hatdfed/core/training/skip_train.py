"""SkipTrain: rounds of training and rounds in which models are only exchanged, in a fixed cycle.

A. Dhasade et al. Energy-aware decentralized learning with intermittent model training. IPDPS workshops 2024, arXiv
2407.01283. A cycle has Γ_train rounds of training, then Γ_sync rounds of synchronisation, the same for all servers. In
its energy-constrained form, a server has energy for so many rounds of training: in each training round of the cycle it
trains with the probability with which its budget lasts to the end of the run. The paper compares that with Greedy,
which trains in every round until its budget is spent: `sync_rounds: 0` and `spread: false`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hatdfed.core.effort import Effort
from hatdfed.core.training.base import Mask, TrainingContext, TrainingOutcome, Vector, train_some
from hatdfed.errors import ConfigError


class RoundsTrained(NamedTuple):
    """How often each server has trained."""

    rounds: NDArray[np.int64]  # [N]


@dataclass(frozen=True)
class SkipTrain:
    """A cycle of training and synchronisation rounds, and a budget for each server if there is one."""

    name: ClassVar[str] = "skip-train"

    train_rounds: int = 1  # Γ_train
    sync_rounds: int = 1  # Γ_sync
    # Rounds of training that each server has energy for: one number, or several that servers get in turn; None: no end.
    budget_rounds: int | tuple[int, ...] | None = None
    budget_joules: float | None = None  # the same in joules of training: a server of a dearer machine has fewer rounds
    spread: bool = True  # whether a budget lasts to the end of the run; otherwise it is spent as soon as possible

    def __post_init__(self) -> None:
        if self.train_rounds < 1 or self.sync_rounds < 0:
            raise ConfigError(
                f"training.train_rounds is {self.train_rounds} and training.sync_rounds {self.sync_rounds}, but a "
                "cycle has at least one round of training and no negative number of others."
            )
        if self.budget_rounds is not None and self.budget_joules is not None:
            raise ConfigError("training.budget_rounds and training.budget_joules are both set. Set one of them.")
        if self.budget_rounds == ():
            raise ConfigError("training.budget_rounds is an empty list. Name at least one number of rounds.")
        if min(*self._budget_rounds, self.budget_joules or 0.0) < 0:
            raise ConfigError("A budget for training must be at least 0.")

    @property
    def _budget_rounds(self) -> tuple[float, ...]:
        """Those that servers get in turn."""
        if self.budget_rounds is None:
            return (np.inf,)
        return self.budget_rounds if isinstance(self.budget_rounds, tuple) else (self.budget_rounds,)

    def init(self, num_servers: int) -> RoundsTrained:
        """Nobody has trained."""
        return RoundsTrained(np.zeros(num_servers, dtype=np.int64))

    def grow(self, state: RoundsTrained, num_servers: int) -> RoundsTrained:
        """New servers have their whole budget."""
        return RoundsTrained(np.concatenate([state.rounds, np.zeros(num_servers - len(state.rounds), dtype=np.int64)]))

    def find_most_passes(self, passes: int) -> int:
        """As many as the settings say."""
        return passes

    def propose(self, state: RoundsTrained, context: TrainingContext, rng: np.random.Generator) -> Effort:
        """In a training round of the cycle, those train whom chance and their budgets allow."""
        drawn = rng.random(context.num_servers)  # the same numbers in every round, whoever has a budget
        if not self._is_training(context.t):
            return train_some(context, np.zeros(context.num_servers, dtype=bool))
        return train_some(context, drawn < self.find_probability(state, context))

    def update(self, state: RoundsTrained, outcome: TrainingOutcome, context: TrainingContext) -> RoundsTrained:
        """A round that was to be trained in is used up, whatever came of it."""
        trained: Mask = outcome.effort.passes > 0
        return RoundsTrained(state.rounds + trained)

    def find_probability(self, state: RoundsTrained, context: TrainingContext) -> Vector:
        """The probability of each server to train in a training round: budgeted rounds left over training rounds left.

        It is 1 as long as there are any, where a budget is not to be spread.
        """
        budget = self._find_budget(context)
        if not self.spread:
            return np.where(state.rounds < budget, 1.0, 0.0)
        left = self._count_training(context.horizon) - self._count_training(context.t)
        return np.clip((budget - state.rounds) / max(1, left), 0.0, 1.0)

    def _is_training(self, t: int) -> bool:
        return t % (self.train_rounds + self.sync_rounds) < self.train_rounds

    def _count_training(self, rounds: int) -> int:
        """Training rounds among the first so many."""
        cycles, more = divmod(rounds, self.train_rounds + self.sync_rounds)
        return cycles * self.train_rounds + min(more, self.train_rounds)

    def _find_budget(self, context: TrainingContext) -> Vector:
        """Rounds of training that each server has energy for."""
        if self.budget_joules is not None:
            return np.floor(self.budget_joules / np.maximum(context.training_joules, 1e-12))
        return np.resize(np.asarray(self._budget_rounds, dtype=np.float64), context.num_servers)
