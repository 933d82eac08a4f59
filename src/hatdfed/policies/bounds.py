"""The two bounds of every comparison: no link at all, and every link there is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hatdfed.policies.base import PolicyContext, Stateless, certain
from hatdfed.round import LinkDraw


@dataclass(frozen=True)
class NoLinks(Stateless):
    """Everybody for itself."""

    def propose(self, state: object, context: PolicyContext, rng: np.random.Generator) -> LinkDraw:
        """Nothing."""
        return certain(np.zeros(context.reachable.shape, dtype=bool))


@dataclass(frozen=True)
class AllLinks(Stateless):
    """Everybody hears everybody."""

    def propose(self, state: object, context: PolicyContext, rng: np.random.Generator) -> LinkDraw:
        """Every possible link."""
        return certain(context.possible)
