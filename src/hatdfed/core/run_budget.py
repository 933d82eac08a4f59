"""One budget of joules for a whole run: uploads, training and links together.

A round may spend what the rounds so far have earned, an equal share each, less what was spent; what a finish with all
links takes is put aside, up to half of the budget. Links come first: a schedule draws no more of them than the round
may pay (`PolicyContext.allowance`). Then servers are taken in random order, and those train for whom the rest of the
allowance is enough at the worst that they can cost, which is with all devices connected. What a round leaves over is
there for later ones, so the limit is never exceeded and little of it is lost.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hatdfed.core.effort import Effort
from hatdfed.core.links import Indices
from hatdfed.core.policies.base import PolicyContext


@dataclass(frozen=True)
class RunBudget:
    """A hard limit on the energy of a run."""

    joules: float
    finish_rounds: int = 0  # at the end, with every link
    message_share: float = 1.0  # what a message takes of a float32 model, which is what prices are for
    attempts: int = 1  # how often a model may be sent along a link in a round, at worst

    def allow(self, spent: float, context: PolicyContext) -> float:
        """Joules that this round may spend."""
        finish = min(self.finish_rounds, context.horizon - 1)
        aside = min(finish * self.find_link_cost(np.flatnonzero(context.possible), context), self.joules / 2)
        if context.t >= context.horizon - finish:
            return self.joules - spent
        return (self.joules - aside) * (context.t + 1) / (context.horizon - finish) - spent

    def find_link_cost(self, places: Indices, context: PolicyContext) -> float:
        """Joules of the links at these places, at worst."""
        return self.attempts * self.message_share * math.fsum(context.prices[places])

    def fit(
        self, effort: Effort, cost: NDArray[np.float64], allowed: float, rng: np.random.Generator
    ) -> Effort:  # cost: [N] of each server's effort, at worst
        """Cut the effort to as many servers as the budget affords; the others rest."""
        rests = np.ones(len(cost), dtype=bool)
        for server in rng.permutation(len(cost)).tolist():
            if cost[server] <= allowed:
                rests[server] = False
                allowed -= float(cost[server])
        return effort.rest(rests)
