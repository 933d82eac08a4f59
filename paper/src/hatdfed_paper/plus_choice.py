"""The recipe of `hat-dfed-plus`, chosen part by part on validation data.

Every change of a guess meets it in the same worlds: data sets × settings × seeds. A part that is there for
accuracy is changed if a change is distinguishably more accurate; of several the best. A part that is there to save
joules takes the value with the fewest link joules among those that are at most `TOLERATED` points, and not
distinguishably, less accurate than the most accurate value. A value whose links cost more than `LINKS_AT_MOST` of what
those of the four baselines cost on average is not considered: 94 % less is asked for, and other worlds may be a little
dearer. The test set plays no part.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hatdfed.runs.statistics import PairedDifference, paired_or_none
from hatdfed.setup.layers import merge_layers
from hatdfed_paper.plans import BASELINES, Scale, point
from hatdfed_paper.plus_plans import Change, Sweep
from hatdfed_paper.results import Results

TOLERATED = 0.5  # points of validation accuracy
LINKS_AT_MOST = 0.055  # of the baselines' link joules
_STEERS = "validation_accuracy"
World = str


class Tried(NamedTuple):
    """One value of a part."""

    change: Change | None  # None: as in the guess
    accuracy: Mapping[World, float]  # validation
    link_mj: float  # mean


def tried(results: Results, scale: Scale, sweep: Sweep) -> list[Tried]:
    """The guess, then every change that has been played."""
    found = [_tried(results, scale, sweep, change) for change in (None, *sweep.changes)]
    return [each for each in found if each.accuracy]


def allowed_link_mj(results: Results, scale: Scale, sweep: Sweep) -> float:
    """What links may cost on average over the places of a sweep; no limit while baselines are missing there."""
    places = [(dataset, place) for dataset in scale.datasets for place in sweep.places_for(dataset)]
    spent = [_baselines_mj(results, dataset, place) for dataset, place in places]
    return math.inf if None in spent else LINKS_AT_MOST * sum(each or 0.0 for each in spent) / len(spent)


def _baselines_mj(results: Results, dataset: str, place: Mapping[str, Any]) -> float | None:
    """Mean link joules of the four at one place; None where one of them was not played."""
    means = [results.figures(point(dataset, method, **place), "link_energy_mj").values() for method in BASELINES]
    return sum(sum(each) / len(each) for each in means) / len(means) if all(means) else None


def recipe(sweep: Sweep, found: Sequence[Tried], allowed_mj: float = math.inf) -> dict[str, Any]:
    """The guess with the changes that the rule makes."""
    settings: Mapping[str, Any] = sweep.guess
    for change in chosen_changes(found, allowed_mj):
        settings = merge_layers(settings, change.settings)
    return dict(settings)


def chosen_changes(found: Sequence[Tried], allowed_mj: float = math.inf) -> list[Change]:
    """At most one for each part, in their order."""
    if not found or found[0].change is not None:
        return []
    others = [each for each in found if each.change is not None and each.link_mj <= allowed_mj]
    parts = dict.fromkeys(each.change.part for each in others if each.change is not None)
    chosen = [
        _best_of(found[0], [each for each in others if each.change and each.change.part == part]) for part in parts
    ]
    return [each.change for each in chosen if each.change is not None]


def gain(mine: Tried, other: Tried) -> PairedDifference | None:
    """Points more than the other, world by world."""
    worlds = sorted(mine.accuracy.keys() & other.accuracy.keys())
    numbered = [{number: each.accuracy[world] for number, world in enumerate(worlds)} for each in (mine, other)]
    return paired_or_none(numbered[0], numbered[1])


def _best_of(guess: Tried, others: Sequence[Tried]) -> Tried:
    if others[0].change is not None and others[0].change.saves:
        top = max([guess, *others], key=lambda each: _mean(each, guess))
        good = [each for each in (guess, *others) if _is_as_good(each, top)]
        return min(good, key=lambda each: each.link_mj)
    better = [each for each in others if _is_better(each, guess)]
    return max(better, key=lambda each: _mean(each, guess)) if better else guess


def _mean(mine: Tried, guess: Tried) -> float:
    difference = gain(mine, guess)
    return float("-inf") if difference is None else difference.mean


def _is_better(mine: Tried, other: Tried) -> bool:
    difference = gain(mine, other)
    return difference is not None and difference.low is not None and difference.low > 0


def _is_as_good(mine: Tried, top: Tried) -> bool:
    difference = gain(mine, top)
    if difference is None or difference.high is None:
        return False
    return mine is top or (difference.mean >= -TOLERATED and difference.high >= 0)


def _tried(results: Results, scale: Scale, sweep: Sweep, change: Change | None) -> Tried:
    settings = sweep.guess if change is None else merge_layers(sweep.guess, change.settings)
    accuracy: dict[World, float] = {}
    joules: list[float] = []
    for dataset in scale.datasets:
        for place in sweep.places_for(dataset):
            at = point(dataset, "hat-dfed", **place, **settings)
            where = f"{dataset} {list(place.values())}"
            accuracy |= {f"{where} {seed}": value for seed, value in results.figures(at, _STEERS).items()}
            joules += results.figures(at, "link_energy_mj").values()
    return Tried(change, accuracy, sum(joules) / len(joules) if joules else 0.0)
