"""Epidemic learning: whom a server meets is drawn anew each round, and nothing is learned about it.

M. de Vos et al. Epidemic learning: boosting decentralized learning with randomized communication. NeurIPS 2023. Its two
forms: EL-Local, where every server picks its receivers by itself, so that some hear many and some hear nobody; and
EL-Oracle, where a coordinator draws a random regular graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hatdfed.core.links import BoolMatrix, all_links
from hatdfed.core.policies.base import PolicyContext, Stateless, make_draw
from hatdfed.core.round import LinkDraw
from hatdfed.errors import ConfigError

# A try that demands a simple graph at once succeeds about once in e^((d² − 1)/4): past degree 4 we repair at once.
_STRICT_UP_TO_DEGREE = 4
_STRICT_TRIES, _ALL_TRIES = 200, 400


@dataclass(frozen=True)
class EpidemicLocal(Stateless):
    """Every server sends to a few uniformly random others; receivers average what comes."""

    name: ClassVar[str] = "epidemic-local"

    fanout: int = 2  # s, models that a server sends in a round; all it can where fewer servers are there

    uses_budget: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.fanout < 1:
            raise ConfigError(f"policy.fanout is {self.fanout}, but must be at least 1.")

    def propose(self, state: object, context: PolicyContext, rng: np.random.Generator) -> LinkDraw:
        """For each sender, the receivers with the smallest of independent random keys: a uniform subset."""
        possible = context.links.to_dense(context.possible)
        keys = np.where(possible, rng.random(possible.shape), np.inf)
        place = keys.argsort(axis=0).argsort(axis=0)
        receivers = possible.sum(axis=0)
        chance = np.minimum(1.0, self.fanout / np.maximum(receivers, 1))
        drawn, propensity = possible & (place < self.fanout), np.where(possible, chance, 0.0)
        return make_draw(context.links, context.links.from_dense(drawn), context.links.from_dense(propensity))


@dataclass(frozen=True)
class EpidemicOracle(Stateless):
    """A fresh random regular graph each round, with weight 1 / (degree + 1) for each neighbour."""

    name: ClassVar[str] = "epidemic-oracle"

    degree: int = 2  # s, servers that each one exchanges models with

    uses_budget: ClassVar[bool] = False
    plans_mixing: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.degree < 1:
            raise ConfigError(f"policy.degree is {self.degree}, but must be at least 1.")

    def propose(self, state: object, context: PolicyContext, rng: np.random.Generator) -> LinkDraw:
        """The graph over the active servers; an edge that is dead in one direction is left out in both.

        Weights of edges left out go back to the two servers themselves, so the mean stays where it is.
        """
        refuse_impossible_degree(self.degree, len(context.active))
        members = np.flatnonzero(context.active)
        degree = _feasible_degree(len(members), self.degree)
        possible = context.links.to_dense(context.possible)
        possible = possible & possible.T
        links = np.zeros(possible.shape, dtype=bool)
        links[np.ix_(members, members)] = random_regular_graph(len(members), degree, rng)
        links &= possible
        propensity = np.where(possible, degree / max(len(members) - 1, 1), 0.0)
        drawn = context.links.from_dense(links)
        return make_draw(context.links, drawn, context.links.from_dense(propensity), drawn / (degree + 1))


def refuse_impossible_degree(degree: int, num_servers: int) -> None:
    """Refuse a number of neighbours that no graph of so many servers has."""
    if degree >= num_servers or degree * num_servers % 2:
        raise ConfigError(
            f"policy.degree is {degree}, but no graph of {num_servers} servers gives each of them that many "
            f"neighbours: it must be less than {num_servers}, and one of the two numbers must be even."
        )


def _feasible_degree(num_servers: int, degree: int) -> int:
    """The degree, or the next lower one that exists while some servers are absent."""
    degree = max(min(degree, num_servers - 1), 0)
    return degree - degree * num_servers % 2


def random_regular_graph(num_servers: int, degree: int, rng: np.random.Generator) -> BoolMatrix:
    """A uniformly random simple graph in which everybody has `degree` neighbours; degree · num_servers is even.

    Every server gets `degree` stubs, and all stubs are paired at random. Starting over until no pair is a loop or a
    repetition gives every graph the same chance, but takes ever longer for larger degrees. Then bad pairs are repaired
    as by A. Steger and N. Wormald. Generating random regular graphs quickly. Combinatorics, Probability and Computing
    1999, which is nearly uniform over graphs. Over links it is uniform either way, for no server is special.
    """
    if 2 * degree > num_servers - 1:  # of the other links a sparse graph is left over
        return all_links(num_servers) & ~random_regular_graph(num_servers, num_servers - 1 - degree, rng)
    for attempt in range(_ALL_TRIES):
        repair = degree > _STRICT_UP_TO_DEGREE or attempt >= _STRICT_TRIES
        graph = _pair_stubs(num_servers, degree, rng, repair=repair)
        if graph is not None:
            return graph
    return _draw_lattice(num_servers, degree, rng)


def _pair_stubs(num_servers: int, degree: int, rng: np.random.Generator, *, repair: bool) -> BoolMatrix | None:
    """One try; None where it got stuck."""
    graph = np.zeros((num_servers, num_servers), dtype=bool)
    stubs = np.repeat(np.arange(num_servers), degree)
    while len(stubs):
        pairs = np.sort(rng.permutation(stubs).reshape(-1, 2), axis=1)
        _, first = np.unique(pairs[:, 0] * num_servers + pairs[:, 1], return_index=True)
        good = np.zeros(len(pairs), dtype=bool)
        good[first] = True
        good &= (pairs[:, 0] != pairs[:, 1]) & ~graph[pairs[:, 0], pairs[:, 1]]
        if not good.any() or not (repair or good.all()):
            return None
        one, other = pairs[good].T
        graph[one, other] = graph[other, one] = True
        stubs = pairs[~good].ravel()
    return graph


def _draw_lattice(num_servers: int, degree: int, rng: np.random.Generator) -> BoolMatrix:
    """Servers at random places of a ring, each with its nearest neighbours and, for odd degrees, its opposite."""
    place = rng.permutation(num_servers)
    ahead = (place[:, None] - place[None, :]) % num_servers
    distance = np.minimum(ahead, num_servers - ahead)
    opposite = (degree % 2 == 1) & (2 * distance == num_servers)
    lattice: BoolMatrix = ((distance > 0) & (distance <= degree // 2)) | opposite
    return lattice
