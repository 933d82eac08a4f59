"""Claim by claim: reproduced, partly, or not.

A claimed difference is *reproduced* if the whole 95 % interval of ours lies on its side of zero and ours is at least as
large or has the published size inside its interval; *partly* if the interval lies on its side, but is smaller; else
*not reproduced*. A value that the paper calls best is *reproduced* if no other value of the sweep has a higher mean,
*partly* if the best one is not distinguishable from it (the interval of the paired difference contains zero).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from hatdfed.paper.plans import Settings
from hatdfed.paper.results import Results
from hatdfed.statistics import PairedDifference, paired_difference

REPRODUCED, PARTLY, NOT = "reproduced", "partly", "not reproduced"


class Verdict(NamedTuple):
    """One claim and what became of it."""

    group: str
    claim: str
    published: str
    ours: str
    verdict: str


def judged(ours: PairedDifference, published: float) -> str:
    """The rule for a claimed difference; both are positive where the claim holds.

    >>> judged(PairedDifference(2.0, 1.5, 2.5, 10), 1.9), judged(PairedDifference(1.0, 0.5, 1.5, 10), 1.9)
    ('reproduced', 'partly')
    """
    if ours.low is None or ours.high is None or ours.low <= 0:
        return NOT
    return REPRODUCED if ours.high >= published else PARTLY


def with_interval(ours: PairedDifference, unit: str) -> str:
    """As people write it."""
    if ours.low is None or ours.high is None:
        return f"{ours.mean:+.1f} {unit}"
    return f"{ours.mean:+.1f} {unit} ({ours.low:+.1f} to {ours.high:+.1f})"


def claimed(group: str, words: str, ours: PairedDifference | None, published: float, unit: str) -> Iterator[Verdict]:
    """A claimed difference; nothing where we have not measured it."""
    if ours is not None:
        theirs = f"{published:+.1f} {unit}"
        yield Verdict(group, words, theirs, with_interval(ours, unit), judged(ours, published))


def best_of_sweep(
    group: str, words: str, results: Results, sweep: Mapping[float, Settings], published: float
) -> Iterator[Verdict]:
    """Whether the published value is the best of a sweep; nothing where the sweep is not complete."""
    accuracy = {value: results.figures(settings, "avg_accuracy") for value, settings in sweep.items()}
    if not all(accuracy.values()):
        return
    best = max(accuracy, key=lambda value: sum(accuracy[value].values()) / len(accuracy[value]))
    if best == published:
        yield Verdict(group, words, "best", "best", REPRODUCED)
        return
    ahead = paired_difference(accuracy[best], accuracy[published])
    ours = f"{best:g} is ahead by {with_interval(ahead, 'points')}"
    yield Verdict(group, words, "best", ours, NOT if ahead.low is not None and ahead.low > 0 else PARTLY)


def by_share(near: int, total: int) -> str:
    """All of them, at least half, or fewer."""
    return REPRODUCED if near == total else PARTLY if 2 * near >= total else NOT
