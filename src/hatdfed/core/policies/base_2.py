"""The Base-2 graph: pairs that change every round and average exactly after a few, for any number of servers.

Y. Takezawa et al. Beyond exponential graph: communication-efficient topologies for decentralized learning via
finite-time convergence. NeurIPS 2023; their Base-(k + 1) graph with k = 1, so nobody meets two others in one round.

A power of two averages on a hypercube. Other numbers are split as N = p·q, p a power of two and q odd: p groups of q
average within themselves, side by side, then a hypercube joins each server with its counterparts. An odd q is split
into sets V_1, V_2, … whose sizes are its binary digits, largest first. Each averages within itself; then V_s, for
s = 1, 2, …, meets the servers of all later sets, one to one, with the weight that its size deserves, and averages
within itself again.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, NamedTuple

import numpy as np

from hatdfed.core.policies.base import PolicyContext, Stateless, certain
from hatdfed.core.round import LinkDraw


class Pair(NamedTuple):
    """Two servers that exchange models."""

    one: int
    other: int
    weight: float = 0.5  # of the other's model, on both sides


Round = tuple[Pair, ...]


@dataclass(frozen=True)
class Base2Graph(Stateless):
    """Every server meets at most one other; after a period all hold the average of all."""

    name: ClassVar[str] = "base-2-graph"
    uses_budget: ClassVar[bool] = False
    plans_mixing: ClassVar[bool] = True

    def propose(self, state: object, context: PolicyContext, rng: np.random.Generator) -> LinkDraw:
        """Round t of the period over the active servers; the budget plays no part.

        A pair that cannot talk in both directions is left out: a one-sided exchange would move the mean.
        """
        members = np.flatnonzero(context.active)
        possible = context.links.to_dense(context.possible)
        mixing = np.zeros(possible.shape)
        schedule = base_2_schedule(len(members))
        for one, other, weight in schedule[context.t % len(schedule)] if schedule else ():
            i, j = members[one], members[other]
            if possible[i, j] and possible[j, i]:
                mixing[i, j] = mixing[j, i] = weight
        weights = context.links.from_dense(mixing)
        return certain(context.links, weights > 0, weights)


@lru_cache(maxsize=64)
def base_2_schedule(num_servers: int) -> tuple[Round, ...]:
    """The pairs of each round of one period; empty for fewer than two servers."""
    if num_servers < 2:
        return ()
    groups = num_servers & -num_servers  # the largest power of two that divides it
    size = num_servers // groups
    within = [
        tuple(Pair(g * size + one, g * size + other, weight) for g in range(groups) for one, other, weight in pairs)
        for pairs in _odd_schedule(size)
    ]
    between = [
        tuple(Pair(i + size * g, i + size * h, weight) for i in range(size) for g, h, weight in _hypercube(groups, bit))
        for bit in range(groups.bit_length() - 1)
    ]
    return (*within, *between)


def _odd_schedule(size: int) -> list[Round]:
    """The simple Base-2 graph on an odd number of servers: 2·log₂|V_1| + 1 rounds."""
    if size == 1:
        return []
    sets = _powers_of_two(size)
    first = len(sets[0]).bit_length() - 1
    rounds: list[list[Pair]] = [[] for _ in range(2 * first + 1)]
    for s, members in enumerate(sets):
        meeting = first + s
        if s + 1 < len(sets):  # the last set is done once it has met all others
            rounds[meeting] += _meeting(members, size)
        for bit in range(len(members).bit_length() - 1):
            within = [Pair(members[one], members[other]) for one, other, _ in _hypercube(len(members), bit)]
            rounds[bit] += within
            rounds[meeting + 1 + bit] += within
    return [tuple(pairs) for pairs in rounds]


def _meeting(members: range, size: int) -> list[Pair]:
    """V_s meets all later servers, from its end; of those it leaves over, neighbours pair up from the front."""
    later = range(members.stop, size)
    alone = members[: len(members) - len(later)]
    weight = len(members) / (len(members) + len(later))
    met = [Pair(one, other, weight) for one, other in zip(members[len(alone) :], later, strict=True)]
    return [*(Pair(*two) for two in zip(alone[::2], alone[1::2], strict=False)), *met]


def _powers_of_two(size: int) -> list[range]:
    """0 … size − 1 in consecutive sets whose sizes are descending powers of two.

    >>> _powers_of_two(5)
    [range(0, 4), range(4, 5)]
    """
    sets, start = [], 0
    while start < size:
        length = 1 << ((size - start).bit_length() - 1)
        sets.append(range(start, start + length))
        start += length
    return sets


def _hypercube(size: int, bit: int) -> list[Pair]:
    """Everybody with the one whose number differs in one bit."""
    return [Pair(one, one | (1 << bit)) for one in range(size) if not one & (1 << bit)]
