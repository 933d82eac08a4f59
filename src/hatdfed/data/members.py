"""Who is who in a simulated world: groups of servers, servers with bad data, liars. Functions of the seed alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hatdfed.errors import ConfigError
from hatdfed.randomness import stream

Indices = NDArray[np.int64]
Flags = NDArray[np.bool_]


class Members(NamedTuple):
    """What each of N servers is."""

    group: Indices  # [N] at the beginning
    last_group: Indices  # [N] at the end; the same unless groups change
    is_liar: Flags  # [N]
    has_bad_labels: Flags  # [N]
    has_broken_sensors: Flags  # [N]

    @property
    def is_sound(self) -> Flags:
        """[N] who neither lies nor has bad data."""
        return ~(self.is_liar | self.has_bad_labels | self.has_broken_sensors)


def draw_members(
    seed: int,
    num_servers: int,
    *,
    groups: int = 1,
    group_shares: Sequence[float] | None = None,
    changing: float = 0.0,
    liars: float = 0.0,
    bad_labels: float = 0.0,
    broken_sensors: float = 0.0,
) -> Members:
    """Draw who belongs to which group, who lies and who has bad data; nobody does two of the last three."""
    group = _draw_groups(seed, num_servers, groups, group_shares)
    faulty = {"world.liars": liars, "world.bad_labels": bad_labels, "world.broken_sensors": broken_sensors}
    sizes = [round(share * num_servers) for share in faulty.values()]
    if sum(sizes) >= num_servers:
        raise ConfigError(
            f"{', '.join(faulty)} name {sum(sizes)} of {num_servers} servers. Leave at least one that is honest "
            "and has good data."
        )
    order = stream(seed, "faulty-servers").permutation(num_servers)
    places = np.split(order, np.cumsum(sizes))
    flags = [np.isin(np.arange(num_servers), place) for place in places[:3]]
    return Members(group, _move(seed, group, groups, changing), *flags)


def draw_amounts(seed: int, num_servers: int, images_per_server: int, ratio: float) -> list[int]:
    """How many images each server has: between the mean divided and multiplied by √ratio, evenly in the logarithm."""
    exponent = stream(seed, "amounts").uniform(-0.5, 0.5, size=num_servers)
    return [max(1, round(images_per_server * ratio**each)) for each in exponent]


def share_work(samples: int, owned: int, images_per_server: int) -> int:
    """A server's part of a round's `samples`, in proportion to its number of images."""
    return max(1, round(samples * owned / images_per_server))


def _draw_groups(seed: int, num_servers: int, groups: int, shares: Sequence[float] | None) -> Indices:
    sizes = _group_sizes(num_servers, groups, shares)
    in_order = np.repeat(np.arange(groups), sizes)
    return in_order[stream(seed, "groups-of-servers").permutation(num_servers)]


def _group_sizes(num_servers: int, groups: int, shares: Sequence[float] | None) -> list[int]:
    """As near to the shares as whole servers allow (largest remainders), and nobody's group empty."""
    if groups > num_servers:
        raise ConfigError(f"world.groups is {groups}, but there are {num_servers} servers. Use at most as many groups.")
    if shares is not None and len(shares) != groups:
        raise ConfigError(f"world.group_shares has {len(shares)} numbers, but world.groups is {groups}.")
    weights = np.asarray(shares if shares is not None else [1.0] * groups, dtype=np.float64)
    wanted = weights / weights.sum() * num_servers
    sizes = np.floor(wanted + 1e-9).astype(int)
    for place in np.argsort(sizes - wanted, kind="stable")[: num_servers - sizes.sum()]:
        sizes[place] += 1
    while (sizes == 0).any():
        sizes[np.argmax(sizes)] -= 1
        sizes[np.argmin(sizes)] += 1
    return [int(size) for size in sizes]


def _move(seed: int, group: Indices, groups: int, changing: float) -> Indices:
    """The groups after `changing` of the servers went on to the next one."""
    movers = stream(seed, "moving-servers").permutation(len(group))[: round(changing * len(group))]
    moved = group.copy()
    moved[movers] = (group[movers] + 1) % groups
    return moved
