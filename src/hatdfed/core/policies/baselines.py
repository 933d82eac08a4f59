"""What every comparison is held against: no link at all, every link there is, and random links (RND)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hatdfed.core.policies.base import PolicyContext, Stateless, certain, make_draw, silence
from hatdfed.core.round import LinkDraw


@dataclass(frozen=True)
class NoLinks(Stateless):
    """No links: every server trains alone."""

    name: ClassVar[str] = "no-links"
    uses_budget: ClassVar[bool] = False

    def propose(self, state: object, context: PolicyContext, rng: np.random.Generator) -> LinkDraw:
        """Nothing."""
        return silence(context, plans_mixing=False)


@dataclass(frozen=True)
class AllLinks(Stateless):
    """Every server receives from all others."""

    name: ClassVar[str] = "all-links"
    uses_budget: ClassVar[bool] = False

    def propose(self, state: object, context: PolicyContext, rng: np.random.Generator) -> LinkDraw:
        """Every possible link."""
        return certain(context.links, context.possible)


@dataclass(frozen=True)
class RandomLinks(Stateless):
    """The paper's random baseline: as many links as the budget allows, drawn anew each round, all equally likely.

    Every set of `budget` links has the same chance, so each link has probability budget / links. It is the bandit with
    η = 0, and therefore the ablation of its learning.
    """

    name: ClassVar[str] = "random-links"

    takes_candidates = True

    def propose(self, state: object, context: PolicyContext, rng: np.random.Generator) -> LinkDraw:
        """A uniformly random set of `budget` links."""
        places = np.flatnonzero(context.possible)
        drawn = np.zeros(len(context.links), dtype=bool)
        drawn[rng.choice(places, size=context.budget, replace=False)] = True
        propensity = np.where(context.possible, context.budget / max(len(places), 1), 0.0)
        return make_draw(context.links, drawn, propensity)
