"""A random regular graph that stays the same for the whole run, as experiments with D-PSGD at scale use it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np

from hatdfed.core.links import BoolColumn, BoolMatrix
from hatdfed.core.policies.base import PolicyContext, Stateless, certain
from hatdfed.core.policies.epidemic import random_regular_graph, refuse_impossible_degree
from hatdfed.core.policies.ring import metropolis_weights
from hatdfed.core.round import LinkDraw
from hatdfed.errors import ConfigError
from hatdfed.randomness import stream


@dataclass(frozen=True)
class RegularGraph(Stateless):
    """Every server exchanges models with the same `degree` others in every round, all with equal weights.

    The graph depends on the number of servers and `graph_seed` only, so that all seeds of a run can share it.
    """

    name: ClassVar[str] = "regular-graph"
    uses_budget: ClassVar[bool] = False
    plans_mixing: ClassVar[bool] = True

    degree: int = 2  # neighbours of each server
    graph_seed: int = 0

    def __post_init__(self) -> None:
        if self.degree < 1:
            raise ConfigError(f"policy.degree is {self.degree}, but must be at least 1.")
        if self.graph_seed < 0:
            raise ConfigError(f"policy.graph_seed is {self.graph_seed}, but must be at least 0.")

    def propose(self, state: object, context: PolicyContext, rng: np.random.Generator) -> LinkDraw:
        """The graph's links between active servers; an edge that is dead in one direction is left out in both.

        Weights of edges left out go back to the two servers themselves, so the mean stays where it is.
        """
        links = self._links(context)
        weights = metropolis_weights(links)
        return certain(context.links, context.links.from_dense(links), context.links.from_dense(weights))

    def finish(self, state: object, context: PolicyContext) -> BoolColumn:
        """The graph's links: there are no others."""
        return context.links.from_dense(self._links(context))

    def _links(self, context: PolicyContext) -> BoolMatrix:
        num_servers = len(context.active)
        refuse_impossible_degree(self.degree, num_servers)
        possible = context.links.to_dense(context.possible)
        links: BoolMatrix = possible & possible.T & _draw_graph(num_servers, self.degree, self.graph_seed)
        return links


@lru_cache(maxsize=8)
def _draw_graph(num_servers: int, degree: int, graph_seed: int) -> BoolMatrix:
    """The same matrix for the same arguments, which nobody writes to."""
    graph = random_regular_graph(num_servers, degree, stream(graph_seed, "regular-graph", num_servers, degree))
    graph.setflags(write=False)
    return graph
