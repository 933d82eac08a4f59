"""What a policy believes about links and servers after a round.

Beliefs are kept and shown, so that people can see why links are drawn. Nothing in a run depends on them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hatdfed.core.links import FloatColumn, LinkTable

NO_GROUP = -1

Groups = NDArray[np.int64]  # [N] number of each server's group, or NO_GROUP


class Beliefs(NamedTuple):
    """A policy's beliefs after a round."""

    links: LinkTable  # that are considered
    verdict: FloatColumn  # [E] of the receiver about the sender's models, −1 (bad) to 1 (good); nan: unknown
    group: Groups  # servers with the same number belong together
    state: tuple[str, ...]  # [N] one word about each server
    reason: tuple[str, ...]  # [N] what happened to a server in this round; empty: nothing


def number_groups(before: Groups, now: Groups) -> Groups:
    """The groups of now under the numbers of before: a group keeps its number while most of its members stay.

    The numbers in `now` may change from round to round. A new group gets the lowest number that no other has.

    >>> number_groups(np.array([0, 0, 0, 1, 1]), np.array([0, 1, 1, 2, 2]))
    array([2, 0, 0, 1, 1])
    """
    known = np.full(len(now), NO_GROUP)
    known[: len(before)] = before
    numbers = _inherited_numbers(known, now)
    taken = set(known.tolist()) | set(numbers.values())
    for group in np.unique(now[now != NO_GROUP]).tolist():
        if group not in numbers:
            numbers[group] = next(number for number in range(len(now) + len(taken) + 1) if number not in taken)
            taken.add(numbers[group])
    return np.array([numbers.get(group, NO_GROUP) for group in now.tolist()], dtype=np.int64)


def _inherited_numbers(before: Groups, now: Groups) -> dict[int, int]:
    """Which groups of now take over the number of a group of before, those first that share the most members."""
    both = (before != NO_GROUP) & (now != NO_GROUP)
    pairs, shared = np.unique(np.stack([before[both], now[both]], axis=1), axis=0, return_counts=True)
    numbers: dict[int, int] = {}
    for old, new in pairs[np.argsort(-shared, kind="stable")].tolist():
        if new not in numbers and old not in numbers.values():
            numbers[new] = old
    return numbers
