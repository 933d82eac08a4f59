"""One fleet cut into shards: who of a round's links concerns whom. Pure, numpy only.

A shard is a block of neighbouring servers, [bounds[s], bounds[s + 1]). Of a round it is told its own servers' links and
which of its models other shards want: each at most once, however many servers there hear it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hatdfed.core.effort import Effort
from hatdfed.core.links import BoolColumn
from hatdfed.core.round import RoundPlan
from hatdfed.errors import ConfigError

Indices = NDArray[np.int64]
Numbers = NDArray[np.float64]


class ShardOrder(NamedTuple):
    """What one shard is told of a round; n servers, l links that end at them."""

    t: int
    receiver: Indices  # [l] counted from the shard's first server, in order
    sender: Indices  # [l] counted through the whole fleet, ascending for each receiver
    mixing: tuple[Numbers, Numbers] | None  # [n] weight of the own model and [l] of each received one, by plan
    num_receivers: Indices  # [n] how many servers hear each, here and elsewhere
    guests: Indices  # [g] senders of other shards, ascending
    post: Mapping[int, Indices]  # shards that want models of this one: whose, counted from its first server
    effort: Effort | None = None  # of the shard's servers; None: as in the paper


class Lost(NamedTuple):
    """What a shard is told of the messages that do not arrive."""

    links: BoolColumn  # [l] of the order's links
    num_lost: Indices  # [n] messages of its own servers, here and elsewhere


def cut_lost(lost: BoolColumn, plan: RoundPlan, bounds: Sequence[int]) -> list[Lost]:  # [L] of the round's links
    """What each shard is told of them."""
    links, topology = np.split(lost, _first_links(plan, bounds)[1:-1]), plan.draw.topology
    num_lost = np.bincount(topology.pairs[lost, 1], minlength=topology.num_servers)
    return [Lost(*each) for each in zip(links, np.split(num_lost, bounds[1:-1]), strict=True)]


def _first_links(plan: RoundPlan, bounds: Sequence[int]) -> Indices:
    """The first link that ends at each shard's servers, and their number at the end."""
    first: Indices = np.searchsorted(plan.draw.topology.pairs[:, 0], np.asarray(bounds))
    return first


def even_bounds(num_servers: int, shards: int) -> tuple[int, ...]:
    """Blocks as equal as can be.

    >>> even_bounds(10, 4)
    (0, 3, 6, 8, 10)
    """
    if not 1 <= shards <= num_servers:
        raise ConfigError(
            f"{num_servers} servers cannot be cut into {shards} shards. Use 1 to {num_servers}; many servers a shard "
            "is what makes one worth its process."
        )
    sizes = [len(part) for part in np.array_split(np.arange(num_servers), shards)]
    return tuple(int(bound) for bound in np.cumsum([0, *sizes]))


def cut(plan: RoundPlan, bounds: Sequence[int]) -> list[ShardOrder]:
    """A round's plan as one order for each shard."""
    topology, own, received = plan.draw.topology, plan.draw.own_mixing, plan.draw.pair_mixing
    receiver, sender = topology.pairs.T
    edges = np.asarray(bounds)
    first_link = _first_links(plan, bounds)
    num_receivers = np.bincount(sender, minlength=topology.num_servers)
    guests = [
        np.unique(there[(there < low) | (there >= high)])
        for there, (low, high) in zip(np.split(sender, first_link[1:-1]), pairwise(bounds), strict=True)
    ]
    owners = [np.searchsorted(edges, those, side="right") - 1 for those in guests]
    orders = []
    for shard, (low, high) in enumerate(pairwise(bounds)):
        links = slice(first_link[shard], first_link[shard + 1])
        wanted = {
            other: those[owner == shard] - low for other, (those, owner) in enumerate(zip(guests, owners, strict=True))
        }
        planned = None if own is None or received is None else (own[low:high], received[links])
        orders.append(
            ShardOrder(
                t=plan.t,
                receiver=receiver[links] - low,
                sender=sender[links],
                mixing=planned,
                num_receivers=num_receivers[low:high],
                guests=guests[shard],
                post={other: rows for other, rows in wanted.items() if len(rows)},
                effort=None if plan.effort is None else plan.effort.of_servers(low, high),
            )
        )
    return orders
