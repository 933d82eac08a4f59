"""Which links are considered at all: d senders for every server instead of all others, so that a round costs N·d.

The links that are considered form a regular graph: every server has d candidates and is a candidate of d others, so
nobody can be left out, and a choice in which all degrees are equal always exists. Now and then servers swap the
candidates that a policy prefers least, in pairs, where neither has the other's. Whatever is swapped, the graph stays
regular.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hatdfed.core.links import FloatColumn, Indices
from hatdfed.randomness import stream

_FIRST_SWAPS = 2  # times that every candidate is offered for a swap at the start
_OFFERED_SHARE = 1 / 4  # of a server's candidates, whenever some are swapped


@dataclass(frozen=True)
class CandidateRule:
    """How many are considered, and how often some of them are swapped."""

    count: int  # d
    refresh_every: int = 10  # rounds

    def first(self, seed: int, num_servers: int) -> Indices:  # -> [N, d]
        """The candidates of all servers in round 0."""
        return regular_graph(num_servers, self.count, stream(seed, "candidates"))

    def is_due(self, t: int) -> bool:
        """Whether candidates are swapped before round t."""
        return t > 0 and t % self.refresh_every == 0

    def swap(self, candidates: Indices, preference: FloatColumn, seed: int, t: int) -> CandidateSwap:
        """Swap some candidates before round t; each server offers those with the least preference [E]."""
        offered = max(1, round(_OFFERED_SHARE * candidates.shape[1]))
        return swap_candidates(candidates, preference, offered, stream(seed, "candidates", t))


class CandidateSwap(NamedTuple):
    """New candidates, and where those of them that are not new stood before."""

    candidates: Indices  # [N, d] ascending in each row
    origin: Indices  # [N, d] column of the old table, −1 for a new candidate

    def carry(self, column: FloatColumn) -> FloatColumn:  # [E] -> [E]
        """Carry a column of the old candidates over to the new ones.

        A new one starts from the mean of the old ones of its receiver: nothing speaks for it or against it.
        """
        values = column.reshape(self.origin.shape)
        kept = np.take_along_axis(values, np.maximum(self.origin, 0), axis=1)
        return np.where(self.origin < 0, values.mean(axis=1, keepdims=True), kept).reshape(-1)


def regular_graph(num_servers: int, degree: int, rng: np.random.Generator) -> Indices:  # -> [N, degree]
    """A random graph in which everybody has so many candidates and is a candidate as often.

    Servers stand in a circle in random order, and each has those at the same few random distances; then they swap. With
    `degree` N − 1 it is everybody else.
    """
    distance = 1 + rng.choice(num_servers - 1, size=degree, replace=False)
    name = rng.permutation(num_servers)
    candidates = np.empty((num_servers, degree), dtype=np.int64)
    candidates[name] = name[(np.arange(num_servers)[:, None] + distance) % num_servers]
    for column in np.tile(np.arange(degree), _FIRST_SWAPS):
        _swap_in_pairs(candidates, np.full(num_servers, column), rng)
    candidates.sort(axis=1)
    return candidates


def swap_candidates(
    candidates: Indices, preference: FloatColumn, offered: int, rng: np.random.Generator
) -> CandidateSwap:
    """Every server offers the candidates that it prefers least, one after the other, each to a random partner."""
    candidates, is_new = candidates.copy(), np.zeros(candidates.shape, dtype=bool)
    preference = preference.reshape(candidates.shape)
    least_first = np.lexsort((rng.random(preference.shape), preference), axis=1)  # ties are broken by chance
    for column in least_first[:, :offered].T:
        swapped = _swap_in_pairs(candidates, column, rng)
        is_new[swapped, column[swapped]] = True
    order = np.argsort(candidates, axis=1)
    origin = np.where(np.take_along_axis(is_new, order, axis=1), -1, order)
    return CandidateSwap(np.take_along_axis(candidates, order, axis=1), origin)


def _swap_in_pairs(candidates: Indices, column: Indices, rng: np.random.Generator) -> Indices:
    """Servers in random pairs swap their candidates in `column` [N], where both can use them; returns who did."""
    half = len(candidates) // 2
    one, other = rng.permutation(len(candidates))[: 2 * half].reshape(2, half)
    offer, answer = candidates[one, column[one]], candidates[other, column[other]]
    fits = _can_use(candidates, one, answer) & _can_use(candidates, other, offer)
    one, other = one[fits], other[fits]
    candidates[one, column[one]], candidates[other, column[other]] = answer[fits], offer[fits]
    return np.concatenate([one, other])


def _can_use(candidates: Indices, server: Indices, offered: Indices) -> NDArray[np.bool_]:
    """Neither oneself nor one that is there already."""
    has_it = (candidates[server] == offered[:, None]).any(axis=1)
    result: NDArray[np.bool_] = (offered != server) & ~has_it
    return result
