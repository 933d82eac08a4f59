"""Asynchronous pairwise averaging, after AD-PSGD.

X. Lian et al. Asynchronous decentralized parallel stochastic gradient descent. ICML 2018. A server that has trained
picks another one at random, and both take the mean of their models. There the other one does so at once, while it
trains; here it does so when its own training ends, with the newest model of the server that picked it. A server that
several have picked takes the mean of all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hatdfed.core.links import BoolColumn, LinkTable, Scalar
from hatdfed.core.policies.base import Feedback, Policy, PolicyContext, make_draw, share_equally
from hatdfed.core.round import LinkDraw


class Picked(NamedTuple):
    """Exchanges that picked servers still have to complete."""

    owed: BoolColumn  # [E] links along which a server that was picked has yet to receive


@dataclass(frozen=True)
class PairwiseAveraging(Policy):
    """Every server that has trained averages with one other, chosen uniformly; both do, each in its own time."""

    name: ClassVar[str] = "pairwise-averaging"
    uses_budget: ClassVar[bool] = False
    plans_mixing: ClassVar[bool] = True
    learns_in_silence: ClassVar[bool] = True

    def init(self, num_servers: int) -> Picked:
        """The state before round 0: no server has been picked."""
        return Picked(np.zeros(len(LinkTable.all_of(num_servers)), dtype=bool))

    def grow(self, state: Picked, num_servers: int) -> Picked:
        """Add servers that have not been picked."""
        return Picked(LinkTable.all_of(num_servers).grow(state.owed))

    def propose(self, state: Picked, context: PolicyContext, rng: np.random.Generator) -> LinkDraw:
        """One other for each server that can receive; a link back where the other can, too, and what is owed."""
        links, possible = context.links, context.possible
        choices = links.by_receiver(possible)
        keys = np.where(choices, rng.random(choices.shape), np.inf)
        picks = np.zeros(choices.shape, dtype=bool)
        picks[np.arange(len(choices)), keys.argmin(axis=1)] = True
        picked = picks.reshape(-1) & possible
        owed = state.owed & possible
        drawn = picked | (_turn(links, picked) & possible) | owed
        chance = (choices / np.maximum(1, choices.sum(axis=1, keepdims=True))).reshape(-1)
        propensity = np.where(possible, 1 - (1 - chance) * (1 - _turn(links, chance)), 0.0)
        return make_draw(links, drawn, np.where(owed, 1.0, propensity), share_equally(links, drawn))

    def update(self, state: Picked, draw: LinkDraw, feedback: Feedback, context: PolicyContext) -> Picked:
        """Note who received the model that was owed to it; a picked server that could not receive is owed one."""
        drawn = draw.drawn
        new = _turn(draw.links, drawn & ~state.owed) & ~drawn
        return Picked((state.owed & ~drawn) | new)


def _turn(links: LinkTable, column: NDArray[Scalar]) -> NDArray[Scalar]:  # [E] -> [E]
    """The values of the links in the other direction."""
    return links.from_dense(links.to_dense(column).T)
