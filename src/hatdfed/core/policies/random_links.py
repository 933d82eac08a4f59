"""RND: as many links as the budget allows, all equally likely (the paper's random baseline).

Every set of `budget` links has the same chance, so each link has probability budget / links. It is the bandit with
η = 0, and therefore the ablation of its learning.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hatdfed.core.policies.base import PolicyContext, Stateless, make_draw
from hatdfed.core.round import LinkDraw


@dataclass(frozen=True)
class RandomLinks(Stateless):
    """Uniformly random links, drawn anew each round."""

    takes_candidates = True

    def propose(self, state: object, context: PolicyContext, rng: np.random.Generator) -> LinkDraw:
        """A uniformly random set of `budget` links."""
        possible = context.possible
        places = np.flatnonzero(possible)
        budget = min(context.budget, len(places))
        links = np.zeros(possible.shape, dtype=bool)
        links.flat[rng.choice(places, size=budget, replace=False)] = True
        propensity = np.where(possible, budget / max(len(places), 1), 0.0)
        return make_draw(links, propensity, candidates=context.candidates)
