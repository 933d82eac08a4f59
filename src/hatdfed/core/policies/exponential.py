"""SGP's topology: a directed exponential graph that doubles (or triples, …) its reach from round to round.

M. Assran et al. Stochastic gradient push for distributed deep learning. ICML 2019. With m peers, round t uses level
i = t mod L: every server sends to the m servers that lie j·(m + 1)^i places ahead, j = 1 … m. With one peer and plain
averaging it is the one-peer exponential graph: B. Ying et al. Exponential graph is provably efficient for decentralized
deep training. NeurIPS 2021.

Everybody sends and receives equally many models, so plain averaging keeps the mean. One pass over the levels averages
exactly when the number of servers is a power of m + 1, and only nearly otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hatdfed.core.policies.base import PolicyContext, Stateless, certain
from hatdfed.core.round import LinkDraw
from hatdfed.errors import ConfigError


@dataclass(frozen=True)
class ExponentialGraph(Stateless):
    """Every server sends to `peers` others, farther ahead with every level."""

    name: ClassVar[str] = "exponential-graph"

    peers: int = 2  # m, models that a server sends in a round

    uses_budget: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.peers < 1:
            raise ConfigError(f"policy.peers is {self.peers}, but must be at least 1.")

    def propose(self, state: object, context: PolicyContext, rng: np.random.Generator) -> LinkDraw:
        """The level of round t over the active servers, in the order of their numbers; the budget plays no part."""
        members = np.flatnonzero(context.active)
        possible = context.links.to_dense(context.possible)
        links = np.zeros(possible.shape, dtype=bool)
        levels = exponential_offsets(len(members), self.peers)
        for offset in levels[context.t % len(levels)] if levels else ():
            links[np.roll(members, -offset), members] = True
        return certain(context.links, context.links.from_dense(links & possible))


def exponential_offsets(num_servers: int, peers: int) -> list[list[int]]:
    """How many places ahead each level sends.

    Counted in whole numbers: a logarithm in floating point loses the last level at exact powers, as of 244 servers with
    two peers. An offset that leads back to the sender, or to the same receiver twice, is no second message: with two
    peers that happens at 6, 18 and 54 servers, and at 5.

    >>> exponential_offsets(6, 2)
    [[1, 2], [3]]
    """
    levels, step = [], 1
    while step < num_servers:
        ahead = (j * step % num_servers for j in range(1, min(peers, num_servers) + 1))  # further ones are the same
        levels.append([offset for offset in dict.fromkeys(ahead) if offset])
        step *= peers + 1
    return levels
