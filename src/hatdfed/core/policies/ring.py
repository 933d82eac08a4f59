"""D-PSGD's topology: a fixed ring in both directions, a third of the weight each.

X. Lian et al. Can decentralized algorithms outperform centralized algorithms? NeurIPS 2017. Servers train, then average
with both neighbours; with several local steps the paper's "gradient at the old point" has no counterpart, so we do what
nearly all implementations do: adapt, then combine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hatdfed.core.links import BoolMatrix, FloatMatrix
from hatdfed.core.policies.base import PolicyContext, Stateless, certain
from hatdfed.core.round import LinkDraw


@dataclass(frozen=True)
class Ring(Stateless):
    """Every server receives from the next and the previous active one."""

    name: ClassVar[str] = "ring"
    uses_budget: ClassVar[bool] = False
    plans_mixing: ClassVar[bool] = True

    def propose(self, state: object, context: PolicyContext, rng: np.random.Generator) -> LinkDraw:
        """The ring over the servers that are active; the budget plays no part."""
        members = np.flatnonzero(context.active)
        possible = context.links.to_dense(context.possible)
        links = np.zeros(possible.shape, dtype=bool)
        if len(members) > 1:
            links[members, np.roll(members, 1)] = True
            links[members, np.roll(members, -1)] = True
        links &= possible & possible.T  # its weights are symmetric: an edge is there both ways or not
        drawn, weights = (context.links.from_dense(matrix) for matrix in (links, metropolis_weights(links)))
        return certain(context.links, drawn, weights)


def metropolis_weights(links: BoolMatrix) -> FloatMatrix:
    """Symmetric, doubly stochastic weights for a symmetric graph: 1 / (1 + larger degree), the rest to oneself.

    On a ring of three or more that is 1/3 each; two servers average with ½, because theirs is a single edge.
    """
    degree = links.sum(axis=1)
    weights = np.where(links, 1 / (1 + np.maximum(degree[:, None], degree[None, :])), 0.0)
    np.fill_diagonal(weights, 1 - weights.sum(axis=1))
    return weights
