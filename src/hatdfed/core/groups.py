"""Groups of servers that fit together, from what each says about the models of others.

Correlation clustering by average linkage: two groups are joined if each is the other's best choice, that is if their
members speak best of each other on average, as long as this average is good. Only pairs with a verdict are looked at,
so that it also works where each of thousands of servers considers a few others.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hatdfed.core.beliefs import Groups
from hatdfed.core.links import BoolColumn, FloatColumn, Indices, LinkTable

_DOUBT = 1.0  # verdicts: so many that say nothing are added to those on a pair, so that a few count less than many
_UNCONFIRMED = 0.5  # weight of a verdict of one side, where the other has none
_HEARSAY = 0.3  # weight of what others say, against one verdict
_CLEAR_HEARSAY = 0.3  # mean from which what others say joins two groups between which there is no verdict
_WEAKER = 0.1  # such a choice counts this much of one by verdicts, so that it comes after nearly all of these
_ROUNDING = 1e-9  # what is left of a sum that should be 0


def find_groups(links: LinkTable, verdict: FloatColumn, is_known: BoolColumn) -> Groups:  # [E], [E] -> [N]
    """Servers that fit together, numbered in the order of their first members.

    `verdict` is what the receiver of a link says about its sender, −1 to 1. Where neither of two groups has judged the
    other, because they have no labels in common, what others say decides: those who agree or disagree with the same
    servers are joined.
    """
    pairs = _gather_pairs(links, verdict, is_known)
    if links.has_all:
        pairs = _add_hearsay(links, pairs)
    return _join(links.num_servers, pairs)


class _Pairs(NamedTuple):
    """What is said between two servers or groups; each pair once."""

    low: Indices  # [M]
    high: Indices  # [M] its number is higher
    support: FloatColumn  # [M] sum of the verdicts
    evidence: FloatColumn  # [M] how many there are, those that are not confirmed counting half
    verdicts: FloatColumn  # [M] how many there are; 0: hearsay only


def _gather_pairs(links: LinkTable, verdict: FloatColumn, is_known: BoolColumn) -> _Pairs:
    """The pairs with a verdict; one of one side that the other does not confirm counts half."""
    receiver, sender, told = links.receiver[is_known], links.sender[is_known], verdict[is_known]
    keys = np.minimum(receiver, sender) * links.num_servers + np.maximum(receiver, sender)
    distinct, place = np.unique(keys, return_inverse=True)
    verdicts, told = (_add_up(place, values, len(distinct)) for values in (np.ones(len(told)), told))
    weight = np.where(verdicts > 1, 1.0, _UNCONFIRMED)
    low, high = np.divmod(distinct, links.num_servers)
    return _Pairs(low, high, weight * told, weight * verdicts, verdicts)


def _add_hearsay(links: LinkTable, pairs: _Pairs) -> _Pairs:
    """With all other pairs, of which others say a little: who agrees with the same servers is likely to agree, too."""
    mean, has_verdict = np.zeros((2, links.num_servers, links.num_servers))
    mean[pairs.low, pairs.high] = pairs.support / pairs.evidence
    has_verdict[pairs.low, pairs.high] = 1.0
    mean, has_verdict = mean + mean.T, has_verdict + has_verdict.T
    hearsay = mean @ mean / np.maximum(has_verdict @ has_verdict, 1.0)
    low, high = np.nonzero(np.triu(has_verdict == 0, 1))
    open_pairs = (_HEARSAY * hearsay[low, high], np.full(len(low), _HEARSAY), np.zeros(len(low)))
    added = (low, high, *open_pairs)
    return _Pairs(*(np.concatenate(columns) for columns in zip(pairs, added, strict=True)))


def _join(num_servers: int, pairs: _Pairs) -> Groups:  # -> [N]
    """Join pairs of groups that are each other's best choice until no choice is good."""
    group = np.arange(num_servers)
    while True:
        best = _choose_partners(num_servers, pairs)
        choosing = np.flatnonzero(best >= 0)
        joined = choosing[(best[best[choosing]] == choosing) & (choosing < best[choosing])]
        if not len(joined):
            return np.unique(group, return_inverse=True)[1].reshape(-1)
        target = np.arange(num_servers)
        target[best[joined]] = joined
        group, pairs = target[group], _merge_pairs(num_servers, pairs, target)


def _choose_partners(num_servers: int, pairs: _Pairs) -> Indices:  # -> [N]
    """With whom each group would be joined: the best of those who speak well of it; −1 for nobody."""
    mean = pairs.support / pairs.evidence
    by_hearsay = np.where(mean > _CLEAR_HEARSAY, _WEAKER * mean, 0.0)
    score = np.where(pairs.verdicts > 0, pairs.support / (pairs.evidence + _DOUBT), by_hearsay)
    low, high, score = (column[score > _ROUNDING] for column in (pairs.low, pairs.high, score))
    one, other = np.concatenate([low, high]), np.concatenate([high, low])
    order = np.lexsort((-other, np.tile(score, 2), one))  # of equal scores the lower number comes last
    best = np.full(num_servers, -1)
    best[one[order]] = other[order]  # the last one stays
    return best


def _merge_pairs(num_servers: int, pairs: _Pairs, target: Indices) -> _Pairs:
    """What is said between groups after some have become part of another."""
    one, other = target[pairs.low], target[pairs.high]
    apart = one != other
    keys = (np.minimum(one, other) * num_servers + np.maximum(one, other))[apart]
    distinct, place = np.unique(keys, return_inverse=True)
    low, high = np.divmod(distinct, num_servers)
    return _Pairs(low, high, *(_add_up(place, column[apart], len(distinct)) for column in pairs[2:]))


def _add_up(place: Indices, values: FloatColumn, size: int) -> FloatColumn:  # [M], [M] -> [size]
    return np.bincount(place, weights=values, minlength=size).astype(np.float64)
