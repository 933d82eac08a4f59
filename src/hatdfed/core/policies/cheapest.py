"""The thriftiest topology that still connects everybody: a yardstick for energy, not a method of any paper.

Taking the cheapest links alone would leave dear servers out for ever. So a cheap directed round trip through all active
servers comes first, and only what the budget leaves goes to the cheapest other links. A budget too small for the trip
takes it in turns: the links of ⌈servers / budget⌉ rounds together connect everybody.

The trip is a travelling salesman's, found by two old heuristics: go to the nearest server not yet seen (D. Rosenkrantz
et al. An analysis of several heuristics for the traveling salesman problem. SIAM Journal on Computing 1977), then move
single servers to a better place until none is left to move (after I. Or. Traveling salesman-type combinatorial problems
and their relation to the logistics of regional blood banking. Northwestern University 1976).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from hatdfed.core.links import FloatMatrix
from hatdfed.core.policies.base import PolicyContext, Stateless, certain
from hatdfed.core.round import LinkDraw

Tour = NDArray[np.int64]  # servers in the order in which a model travels

_STARTS = 8
_MAX_PASSES = 50


@dataclass(frozen=True)
class CheapestLinks(Stateless):
    """A cheap round trip through all servers, then the cheapest links; the same every round if the budget allows."""

    name: ClassVar[str] = "cheapest-links"

    def propose(self, state: object, context: PolicyContext, rng: np.random.Generator) -> LinkDraw:
        """`budget` links, or all there are; nothing is left to chance."""
        possible, prices = context.links.to_dense(context.possible), context.links.to_dense(context.prices)
        members = np.flatnonzero(context.active)
        among = np.ix_(members, members)
        trip = members[cheap_cycle(_price_gaps(prices[among], possible[among]))]
        receivers, senders = np.roll(trip, -1), trip
        there = possible[receivers, senders]  # no trip at all may exist: then its gaps are not drawn
        receivers, senders = receivers[there], senders[there]
        turn = (context.t * context.budget + np.arange(min(context.budget, len(senders)))) % max(len(senders), 1)
        links = np.zeros(possible.shape, dtype=bool)
        links[receivers[turn], senders[turn]] = True
        others = np.flatnonzero(possible & ~links)
        cheapest = others[np.argsort(prices.flat[others], kind="stable")]
        links.flat[cheapest[: context.budget - len(turn)]] = True
        return certain(context.links, context.links.from_dense(links))


def cheap_cycle(prices: FloatMatrix) -> Tour:
    """A cheap order in which to visit everybody and return; `prices[receiver, sender]` must be finite.

    It is never dearer than the order of the numbers, in either direction.
    """
    # A run asks for the same trip in every round.
    return np.frombuffer(_cheap_cycle(prices.astype(np.float64).tobytes(), len(prices)), dtype=np.int64)


def cycle_price(prices: FloatMatrix, tour: Tour) -> float:
    """The price of a model's way along the whole cycle."""
    return float(prices[np.roll(tour, -1), tour].sum())


@lru_cache(maxsize=8)
def _cheap_cycle(prices_in_bytes: bytes, num_servers: int) -> bytes:
    prices = np.frombuffer(prices_in_bytes).reshape(num_servers, num_servers)
    by_number = np.arange(num_servers)
    tours = [by_number, by_number[::-1], *(_nearest_first(prices, start) for start in by_number[:_STARTS])]
    best = min((_relocate(prices, tour) for tour in tours), key=lambda tour: cycle_price(prices, tour))
    return best.astype(np.int64).tobytes()


def _price_gaps(prices: FloatMatrix, possible: NDArray[np.bool_]) -> FloatMatrix:
    """Prices in which one impossible link costs more than any trip without one."""
    dearest = prices[possible].max(initial=0.0) or 1.0
    return np.where(possible, prices, dearest * (len(prices) + 1))


def _nearest_first(prices: FloatMatrix, start: int) -> Tour:
    """From each server on to the one that is cheapest to reach of those not yet seen."""
    seen = np.zeros(len(prices), dtype=bool)
    tour = [int(start)]
    seen[start] = True
    while len(tour) < len(prices):
        nearest = int(np.where(seen, np.inf, prices[:, tour[-1]]).argmin())
        tour.append(nearest)
        seen[nearest] = True
    return np.array(tour, dtype=np.int64)


def _relocate(prices: FloatMatrix, tour: Tour) -> Tour:
    """Move single servers to where they add least, as long as that saves anything."""
    if len(tour) < 3:
        return tour
    least_gain = 1e-9 * prices.max()  # rounding errors must not send a server to and fro
    for _ in range(_MAX_PASSES):
        before = tour
        for server in before:
            place = int(np.flatnonzero(tour == server)[0])
            rest = np.concatenate([tour[:place], tour[place + 1 :]])
            after = np.concatenate([rest[1:], rest[:1]])
            added = prices[server, rest] + prices[after, server] - prices[after, rest]
            best = int(added.argmin())
            if added[best] < added[place - 1] - least_gain:
                tour = np.insert(rest, best + 1, server)
        if tour is before:
            break
    return tour
