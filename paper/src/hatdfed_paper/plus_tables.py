"""Rows about `hat-dfed-plus`: against every method as it is, on equal footing, and without each of its parts."""

from __future__ import annotations

from itertools import product
from typing import Any

from hatdfed.runs.statistics import PairedDifference, paired_or_none
from hatdfed.setup.layers import resolve
from hatdfed_paper.link_regimes import ways_to_draw
from hatdfed_paper.plans import BASELINES, Scale, Settings, point, points
from hatdfed_paper.plus_plans import PLUS, WITHOUT
from hatdfed_paper.results import Results
from hatdfed_paper.rows import interval, row_of

Row = dict[str, Any]
_PLACE = ("dataset", "servers", "label_concentration", "device_online_probability")


def plus_tables(results: Results, scale: Scale) -> dict[str, list[Row]]:
    """Every table about it, by name."""
    return {
        "plus": _against(results, [*points("plus", scale), *points("plus_large", scale)]),
        "plus_equal_footing": _against(results, [*points("plus_equal", scale), *points("plus_equal_large", scale)]),
        "plus_dense": _against(results, points("plus_dense", scale)),
        "plus_ablation": _ablation(results, scale),
        "plus_regimes": _regimes(results, scale),
    }


def _against(results: Results, found: list[Settings]) -> list[Row]:
    """Every method in every place, and what `hat-dfed-plus` is ahead of it and of the mean of the four baselines."""
    rows = []
    for settings in found:
        at = results.at(settings)
        here = [each for each in found if _place(each) == _place(settings)]
        (plus,) = (each for each in here if each["method"] == PLUS)
        if not at or not results.at(plus):
            continue
        row = row_of(at, {name: settings[name] for name in (*_PLACE, "method")}, None)
        row["every"] = resolve(settings).schedule.every
        rivals = [each for each in here if each["method"] in BASELINES] if settings is plus else [settings]
        rows.append({**row, "plus_is_ahead_by": _ahead(results, plus, rivals)})
    return rows


def _ablation(results: Results, scale: Scale) -> list[Row]:
    rows = []
    for dataset in scale.datasets:
        whole = point(dataset, PLUS)
        for without in WITHOUT:
            settings = {**whole, **without.settings}
            at = results.at(settings)
            if at and results.at(whole):
                keys = {"dataset": dataset, "part": without.part, "words": without.words}
                rows.append({**row_of(at, keys, None), "plus_is_ahead_by": _ahead(results, whole, [settings])})
    return rows


def _regimes(results: Results, scale: Scale) -> list[Row]:
    """In each regime: how links are drawn, and what the recipe is ahead of that way by."""
    rows = []
    sizes = dict.fromkeys(each["servers"] for each in points("plus_regimes", scale))
    for dataset, servers in product(scale.datasets, sizes):
        ways = {
            (regime, way): point(dataset, PLUS, **changed) for regime, way, changed in ways_to_draw(dataset, servers)
        }
        for (regime, way), settings in ways.items():
            at, whole = results.at(settings), ways[regime, PLUS]
            if at and results.at(whole):
                keys = {"dataset": dataset, "servers": servers, "regime": regime, "links": way}
                row = {**row_of(at, keys, None), "every": resolve(settings).schedule.every}
                rows.append({**row, "plus_is_ahead_by": _ahead(results, whole, [settings])})
    return rows


def _ahead(results: Results, plus: Settings, rivals: list[Settings]) -> Row:
    """Points of accuracy more and percent of energy less than the mean of the rivals, paired over seeds."""
    return {
        "avg_accuracy_points": _difference(results, plus, rivals, "avg_accuracy", percent=False),
        "worst_over_best_points": _worst_over_best(results, plus, rivals),
        "total_energy_percent": _difference(results, plus, rivals, "total_energy_mj", percent=True),
        "link_energy_percent": _difference(results, plus, rivals, "link_energy_mj", percent=True),
    }


def _difference(results: Results, plus: Settings, rivals: list[Settings], figure: str, *, percent: bool) -> Row | None:
    mine, theirs = results.figures(plus, figure), _mean(results, rivals, figure)
    seeds = mine.keys() & theirs.keys()
    if percent:
        saved = {seed: 100 * (1 - mine[seed] / theirs[seed]) for seed in seeds if theirs[seed]}
        return _shown(paired_or_none(saved, dict.fromkeys(saved, 0.0)))
    return _shown(paired_or_none({seed: mine[seed] for seed in seeds}, {seed: theirs[seed] for seed in seeds}))


def _worst_over_best(results: Results, plus: Settings, rivals: list[Settings]) -> Row | None:
    """How far its worst server is above the best server of the best rival."""
    theirs = [results.figures(each, "best_accuracy") for each in rivals]
    mine = results.figures(plus, "worst_accuracy")
    seeds = set(mine).intersection(*theirs)
    top = {seed: max(each[seed] for each in theirs) for seed in seeds}
    return _shown(paired_or_none({seed: mine[seed] for seed in seeds}, top))


def _mean(results: Results, rivals: list[Settings], figure: str) -> dict[int, float]:
    each = [results.figures(rival, figure) for rival in rivals]
    seeds = set.intersection(*map(set, each)) if each else set()
    return {seed: sum(one[seed] for one in each) / len(each) for seed in seeds}


def _shown(difference: PairedDifference | None) -> Row | None:
    return None if difference is None else interval(difference)


def _place(settings: Settings) -> tuple[Any, ...]:
    return tuple(settings[name] for name in _PLACE)
