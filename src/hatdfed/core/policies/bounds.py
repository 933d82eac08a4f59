"""The two bounds of every comparison: no link at all, and every link there is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hatdfed.core.policies.base import PolicyContext, Stateless, certain
from hatdfed.core.round import LinkDraw


@dataclass(frozen=True)
class NoLinks(Stateless):
    """Everybody for itself."""

    uses_budget: ClassVar[bool] = False

    def propose(self, state: object, context: PolicyContext, rng: np.random.Generator) -> LinkDraw:
        """Nothing."""
        return certain(np.zeros(context.reachable.shape, dtype=bool))


@dataclass(frozen=True)
class AllLinks(Stateless):
    """Everybody hears everybody."""

    uses_budget: ClassVar[bool] = False

    def propose(self, state: object, context: PolicyContext, rng: np.random.Generator) -> LinkDraw:
        """Every possible link."""
        return certain(context.possible)
