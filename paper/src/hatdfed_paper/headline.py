"""The figures of the paper's abstract and text, measured over our runs: gains and savings, paired over seeds.

A seed's figure is the mean over all settings and data sets that have it; intervals are over seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hatdfed.runs.statistics import PairedDifference, paired_difference, paired_or_none
from hatdfed_paper.claims import Claims
from hatdfed_paper.places import EASY, HARD
from hatdfed_paper.plans import BASELINES, Scale, Settings, point, settings_of_table_1
from hatdfed_paper.results import Results

BySeed = Mapping[int, float]
Where = Sequence[Mapping[str, Any]]  # data set, λ and ρ


def settings_of(scale: Scale) -> list[Settings]:
    """Every data set in every setting of Table 1."""
    return [{"dataset": name, **setting} for name in scale.datasets for setting in settings_of_table_1()]


def gain_over(results: Results, where: Where, others: Sequence[str], figure: str) -> PairedDifference | None:
    """Points that hat-dfed has more than the mean of these methods."""
    return _compared(results, where, others, figure, lambda mine, theirs: mine - theirs)


def saving_over(results: Results, where: Where, others: Sequence[str], figure: str) -> PairedDifference | None:
    """Percent that hat-dfed needs less than the mean of these methods."""
    return _compared(results, where, others, figure, lambda mine, theirs: 100 * (1 - mine / theirs))


def drop(results: Results, first: Settings, last: Settings, figure: str) -> PairedDifference | None:
    """Points lost from one point to another, seed by seed."""
    return paired_or_none(results.figures(first, figure), results.figures(last, figure))


def headline(results: Results, claims: Claims, scale: Scale) -> dict[str, Any] | None:
    """One row with the keys of the published headline; `intervals` has the same keys."""
    found = measured_headline(results, scale)
    if not found:
        return None
    flat = {name: _nested(value, lambda each: round(each.mean, 4)) for name, value in found.items()}
    intervals = {name: _nested(value, lambda each: _ends(each)) for name, value in found.items()}
    pairs = {name: _nested(value, lambda each: each.n) for name, value in found.items()}
    published = claims.headline if scale.name == "full" else None
    return {**flat, "intervals": intervals, "pairs": pairs, "seeds": _seeds(results, scale), "published": published}


def _seeds(results: Results, scale: Scale) -> list[int]:
    """Of `hat-dfed` in all settings of Table 1."""
    there = [set(results.at(point(where.pop("dataset"), "hat-dfed", **where))) for where in settings_of(scale)]
    return sorted(set.intersection(*there))


def measured_headline(results: Results, scale: Scale) -> dict[str, Any]:
    """Every figure of the headline that our runs can say something about."""
    everywhere = settings_of(scale)
    hardest = [where for where in everywhere if _is_hard(where)]
    found: dict[str, Any] = {
        "avg_accuracy_gain_points": gain_over(results, everywhere, BASELINES, "avg_accuracy"),
        "total_energy_saving_percent": saving_over(results, everywhere, BASELINES, "total_energy_mj"),
        "link_energy_saving_percent": saving_over(results, everywhere, BASELINES, "link_energy_mj"),
        "best_accuracy_gain_points": gain_over(results, everywhere, BASELINES, "best_accuracy"),
        "worst_accuracy_gain_points": gain_over(results, everywhere, BASELINES, "worst_accuracy"),
        "accuracy_gain_over": {name: gain_over(results, everywhere, (name,), "avg_accuracy") for name in BASELINES},
        "total_energy_saving_over_percent": {
            name: saving_over(results, everywhere, (name,), "total_energy_mj") for name in BASELINES
        },
        "accuracy_gain_at_lambda_03_rho_05": gain_over(results, hardest, BASELINES, "avg_accuracy"),
        "ablation_without_utc_energy_saving_percent": [
            saving_over(results, hardest, ("hat-dfed-without-utc",), figure)
            for figure in ("total_energy_mj", "link_energy_mj")
        ],
        "scalability_accuracy_drop_points": {
            name: drop(
                results, easy_point(name, min(scale.servers)), easy_point(name, max(scale.servers)), "avg_accuracy"
            )
            for name in scale.datasets
        },
    }
    known = {name: _nested(value, lambda each: each) for name, value in found.items()}
    return {name: value for name, value in known.items() if value}


def _compared(
    results: Results, where: Where, others: Sequence[str], figure: str, compare: Callable[[float, float], float]
) -> PairedDifference | None:
    each_place = []
    for place in where:
        settings = dict(place)
        dataset = settings.pop("dataset")
        mine = results.figures(point(dataset, "hat-dfed", **settings), figure)
        rivals = [results.figures(point(dataset, name, **settings), figure) for name in others]
        seeds = set(mine).intersection(*rivals)
        each_place.append({s: compare(mine[s], sum(rival[s] for rival in rivals) / len(rivals)) for s in seeds})
    seeds = set.intersection(*(set(place) for place in each_place)) if each_place else set()
    if not seeds:
        return None
    mean = {seed: sum(place[seed] for place in each_place) / len(each_place) for seed in seeds}
    return paired_difference(mean, dict.fromkeys(mean, 0.0))


def _nested(value: Any, change: Callable[[PairedDifference], Any]) -> Any:
    """Change what is known in a figure, a list or a dict of figures; None where nothing is."""
    if isinstance(value, PairedDifference):
        return change(value)
    if isinstance(value, dict):
        return {name: change(each) for name, each in value.items() if each is not None}
    if isinstance(value, list):
        return [change(each) for each in value] if all(each is not None for each in value) else None
    return None


def _ends(difference: PairedDifference) -> list[float | None]:
    return [None if end is None else round(end, 4) for end in (difference.low, difference.high)]


def _is_hard(where: Mapping[str, Any]) -> bool:
    return all(where[name] == value for name, value in HARD.items())


def easy_point(dataset: str, servers: int) -> Settings:
    """A point of the scalability experiment."""
    return point(dataset, "hat-dfed", **EASY, servers=servers)
