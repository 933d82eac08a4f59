"""One rule by which a claim is *reproduced*, *partly* reproduced, or *not*, whichever way it points.

Every claim is turned so that it says that a figure lies above a threshold. Its null hypothesis is that the figure lies
at the threshold or below. With the 95 % interval of our figure, over paired seeds:

* reproduced: the whole interval lies above the threshold, and it reaches the published size where there is one;
* partly: the whole interval lies above the threshold, but below the published size. Only a claim with a published size
  can be reproduced partly;
* not: the interval reaches the threshold or lies below it. That we cannot tell is no reproduction.

The threshold of a difference is 0. A word for a size ("sharply", "marginally") is a threshold that we state: "rises
sharply" says that the rise is above it, "only marginally" that it is below. "The most accurate value of a sweep" says
that its difference to every other value is above 0.

Beside claims there are checks whether our world is the paper's: how many of our figures are near the wanted ones (all:
reproduced; at least half: partly).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from hatdfed.runs.statistics import PairedDifference, paired_or_none
from hatdfed_paper.plan import Settings
from hatdfed_paper.results import Results

REPRODUCED, PARTLY, NOT = "reproduced", "partly", "not reproduced"
CHECK = "check"  # the group of what is no claim
NEAR_SHARE = 0.10  # of an energy


class Verdict(NamedTuple):
    """One claim and what became of it."""

    group: str
    claim: str
    published: str
    ours: str
    verdict: str
    pairs: int  # seeds that the comparison rests on
    null: str = ""  # hypothesis, which a reproduced claim rejects


def judge_size(
    group: str, words: str, ours: PairedDifference | None, published: float, unit: str, *, theirs: str = ""
) -> Iterator[Verdict]:
    """A claimed difference of a given size; nothing where we have not measured it. `theirs` says it in words."""
    if ours is not None:
        theirs = theirs or f"{published:+.1f} {unit}"
        verdict = judge_difference(ours, published)
        yield Verdict(group, words, theirs, format_interval(ours, unit), verdict, ours.n, f"at most 0 {unit}")


def judge_direction(
    group: str, words: str, ours: PairedDifference | None, published: str, unit: str
) -> Iterator[Verdict]:
    """A claimed difference without a size, positive where the claim holds."""
    if ours is not None:
        verdict = judge_difference(ours, 0.0)
        yield Verdict(group, words, published, format_interval(ours, unit), verdict, ours.n, f"at most 0 {unit}")


def judge_at_most(group: str, words: str, ours: PairedDifference | None, size: float, unit: str) -> Iterator[Verdict]:
    """A claim that something grows by less than `size`, which is what we take its word to mean."""
    if ours is not None and ours.low is not None and ours.high is not None:
        verdict = judge_difference(PairedDifference(size - ours.mean, size - ours.high, size - ours.low, ours.n), 0.0)
        theirs, null = f"marginally; we say {size:g} {unit}", f"at least {size:g} {unit}"
        yield Verdict(group, words, theirs, format_interval(ours, unit), verdict, ours.n, null)


def judge_at_least(group: str, words: str, ours: PairedDifference | None, size: float, unit: str) -> Iterator[Verdict]:
    """A claim that something grows by more than `size`, which is what we take its word to mean."""
    if ours is not None and ours.low is not None and ours.high is not None:
        verdict = judge_difference(PairedDifference(ours.mean - size, ours.low - size, ours.high - size, ours.n), 0.0)
        theirs, null = f"sharply; we say {size:g} {unit}", f"at most {size:g} {unit}"
        yield Verdict(group, words, theirs, format_interval(ours, unit), verdict, ours.n, null)


def judge_difference(ours: PairedDifference, published: float) -> str:
    """The rule for a claimed difference; both are positive where the claim holds.

    >>> judge_difference(PairedDifference(2.0, 1.5, 2.5, 10), 1.9)
    'reproduced'
    >>> judge_difference(PairedDifference(1.0, 0.5, 1.5, 10), 1.9)
    'partly'
    """
    if ours.low is None or ours.high is None or not ours.low > 0:  # also where a figure is no number
        return NOT
    return REPRODUCED if ours.high >= published else PARTLY


def judge_best_of_sweep(
    group: str, words: str, results: Results, sweep: Mapping[float, Settings], published: float
) -> Iterator[Verdict]:
    """Whether the published value is the best of a sweep; nothing where the sweep is not complete."""
    accuracy = {value: results.figures(settings, "avg_accuracy") for value, settings in sweep.items()}
    ahead = {value: paired_or_none(seen, accuracy[published]) for value, seen in accuracy.items() if value != published}
    known = {value: difference for value, difference in ahead.items() if difference is not None}
    if not known or len(known) < len(sweep) - 1:
        return
    best = max(known, key=lambda value: known[value].mean)
    is_best = all(each.high is not None and each.high < 0 for each in known.values())
    ours = f"{best:g} is ahead by {format_interval(known[best], 'points')}"
    null = "another value is as accurate"
    yield Verdict(group, words, "best", ours, REPRODUCED if is_best else NOT, known[best].n, null)


def judge_share(near: int, total: int) -> str:
    """All of them, at least half, or fewer."""
    return REPRODUCED if near == total else PARTLY if 2 * near >= total else NOT


def is_near(ours: float, wanted: float) -> bool:
    """Whether an energy is what it should be, or almost."""
    return abs(ours / wanted - 1) <= NEAR_SHARE


def count_near(words: str, near: Sequence[bool], unit: str, seeds: int) -> Iterator[Verdict]:
    """A check of so many of our figures; nothing where there are none."""
    if near:
        verdict = judge_share(sum(near), len(near))
        yield Verdict(CHECK, words, f"{len(near)} {unit}", f"{sum(near)} of {len(near)}", verdict, seeds)


def format_interval(ours: PairedDifference, unit: str) -> str:
    """As people write it."""
    if ours.low is None or ours.high is None:
        return f"{ours.mean:+.1f} {unit}"
    return f"{ours.mean:+.1f} {unit} ({ours.low:+.1f} to {ours.high:+.1f})"
