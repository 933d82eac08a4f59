"""The rules by which a claim is *reproduced*, *partly* reproduced, or *not*.

* A claimed difference of a given size (`judge_size`): reproduced if the 95 % interval of ours lies wholly on its side
  of zero and reaches that size; partly if it lies on that side, but stays below the size; else not.
* A claimed difference without a size (`judge_direction`): reproduced if the interval lies wholly on its side of zero.
* "Only marginally more" (`judge_at_most`): reproduced if the interval lies wholly below what we take the word to mean;
  not if wholly above it; else partly.
* A value that the paper calls best (`judge_best_of_sweep`): reproduced if no other value of the sweep has a higher
  mean; partly if none is distinguishably higher; else not.
* So many of so many (`judge_share`): all, at least half, fewer.

Beside claims there are checks whether our world is the paper's: how many of our figures are near the wanted ones.
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


def judge_size(
    group: str, words: str, ours: PairedDifference | None, published: float, unit: str, *, theirs: str = ""
) -> Iterator[Verdict]:
    """A claimed difference of a given size; nothing where we have not measured it. `theirs` says it in words."""
    if ours is not None:
        theirs = theirs or f"{published:+.1f} {unit}"
        yield Verdict(group, words, theirs, format_interval(ours, unit), judge_difference(ours, published), ours.n)


def judge_direction(
    group: str, words: str, ours: PairedDifference | None, published: str, unit: str
) -> Iterator[Verdict]:
    """A claimed difference without a size, positive where the claim holds."""
    if ours is not None:
        yield Verdict(group, words, published, format_interval(ours, unit), judge_difference(ours, 0.0), ours.n)


def judge_at_most(group: str, words: str, ours: PairedDifference | None, size: float, unit: str) -> Iterator[Verdict]:
    """A claim that something grows by less than `size`."""
    if ours is not None and ours.low is not None and ours.high is not None:
        verdict = REPRODUCED if ours.high < size else NOT if ours.low > size else PARTLY
        yield Verdict(group, words, f"marginally; we say {size:g} {unit}", format_interval(ours, unit), verdict, ours.n)


def judge_difference(ours: PairedDifference, published: float) -> str:
    """The rule for a claimed difference; both are positive where the claim holds.

    >>> judge_difference(PairedDifference(2.0, 1.5, 2.5, 10), 1.9)
    'reproduced'
    >>> judge_difference(PairedDifference(1.0, 0.5, 1.5, 10), 1.9)
    'partly'
    """
    if ours.low is None or ours.high is None or ours.low <= 0:
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
    if known[best].mean <= 0:
        yield Verdict(group, words, "best", "best", REPRODUCED, known[best].n)
        return
    higher = any(each.low is not None and each.low > 0 for each in known.values())
    ours = f"{best:g} is ahead by {format_interval(known[best], 'points')}"
    yield Verdict(group, words, "best", ours, NOT if higher else PARTLY, known[best].n)


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
