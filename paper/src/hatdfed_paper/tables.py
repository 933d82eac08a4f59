"""Rows of every table: our figures as mean and deviation over seeds, the published ones beside them.

Keys are those of `paper/claims/published.toml`, so that ours and theirs can be laid over each other.
"""

from __future__ import annotations

from collections.abc import Mapping

from hatdfed.runs.statistics import paired_or_none
from hatdfed.setup.layers import resolve
from hatdfed_paper.bounds import bound_as_printed, holding_bound
from hatdfed_paper.checks import checks
from hatdfed_paper.choices import calibration
from hatdfed_paper.claims import Claims
from hatdfed_paper.expected_energy import expected_energy
from hatdfed_paper.headline import headline
from hatdfed_paper.plans import FULL, Scale, Settings, point, points, settings_of_table_1
from hatdfed_paper.plus_summary import plus_summary
from hatdfed_paper.plus_tables import plus_tables
from hatdfed_paper.regimes import energy_split, regime_map
from hatdfed_paper.results import Record, Results
from hatdfed_paper.rows import Row, interval, pair, row_of
from hatdfed_paper.search_table import search_table
from hatdfed_paper.verdicts import verdicts
from hatdfed_paper.worth import worth_of_readings

_SETTING = ("label_concentration", "device_online_probability")
# Table, experiment, and the settings that tell its rows apart.
_TABLES = {
    "table_1": ("table1", ("dataset", *_SETTING, "method")),
    "sparsity": ("sparsity", ("dataset", "link_share", *_SETTING)),
    "scalability": ("scalability", ("dataset", "servers", *_SETTING)),
    "sensitivity": ("sensitivity", ("dataset", "gain_share", "quality_share")),
    "ablation": ("ablation", ("dataset", *_SETTING, "method")),
}
_PUBLISHED = ("table_1", "sparsity", "scalability", "ablation")  # what the paper prints as a table


def all_tables(results: Results, claims: Claims, scale: Scale) -> dict[str, list[Row]]:
    """Every table, by name."""
    tables = {name: _table(name, results, claims, scale) for name in _TABLES}
    summary = headline(results, claims, scale)
    judged = [*checks(results, claims, scale), *verdicts(results, claims, scale)] if scale == FULL else []
    found = {
        **tables,
        "headline": [summary] if summary else [],
        "claims": [each._asdict() for each in judged],
        "calibration": _calibration(results, claims, scale),
        "readings": _readings(results, scale),
        "released": _released(results, claims, scale),
        "bandit": _bandit(results, scale),
        "energy": expected_energy(results, scale),
        **plus_tables(results, scale),
        "plus_summary": plus_summary(results, scale),
        "plus_search": search_table(results, scale),
        "plus_energy_split": energy_split(results, scale),
        "regimes": regime_map(results, scale),
    }
    return {name: [{"published": None, **row} for row in rows] for name, rows in found.items()}


def _table(name: str, results: Results, claims: Claims, scale: Scale) -> list[Row]:
    experiment, keys = _TABLES[name]
    rows = []
    for each in points(experiment, scale):
        if at := results.at(each):
            published = claims.row(name, each) if name in _PUBLISHED else None
            rows.append(row_of(at, {key: each[key] for key in keys}, published))
    return rows


def _calibration(results: Results, claims: Claims, scale: Scale) -> list[Row]:
    """D4: validation accuracy of d-psgd for each setting, and how far it is from the published one."""
    rows = []
    for dataset in scale.datasets:
        for each in calibration(results, claims, dataset):
            rows.append(
                {
                    "dataset": dataset,
                    "samples_per_round": each.samples or resolve({"dataset": dataset}).samples_per_round,
                    "local_passes": each.passes,
                    "validation_accuracy": {name: round(value, 4) for name, value in each.accuracy.items()},
                    "mean_distance_points": round(each.distance, 4),
                    "seeds": each.seeds,
                }
            )
    return rows


def _readings(results: Results, scale: Scale) -> list[Row]:
    """What every reading changes in validation and test accuracy and in energy, paired."""
    figures = ("validation_accuracy", "avg_accuracy", "total_energy_mj")
    rows = []
    for worth in zip(*(worth_of_readings(results, scale.datasets, figure) for figure in figures), strict=True):
        reading, tested = worth[0].reading, worth[1]
        for dataset, seeds in tested.seeds.items():
            row: Row = {"reading": reading.number, "words": reading.words, "dataset": dataset}
            for figure, each in zip(figures, worth, strict=True):
                known = each.by_dataset.get(dataset)  # a run that learns from the test set has no validation accuracy
                row[f"{figure}_difference"] = None if known is None else interval(known)
            rows.append({**row, "seeds": seeds})
    return rows


def _released(results: Results, claims: Claims, scale: Scale) -> list[Row]:
    """The released code's habits: the best round on the test set beside the last one, and without the leak."""
    rows = []
    for each in points("released", scale):
        if at := results.at(each):
            keys = {name: each[name] for name in ("dataset", *_SETTING, "method")}
            published = claims.row("table_1", {**each, "method": "hat-dfed"})
            row = row_of(at, {**keys, "feedback": _feedback(each)}, published)
            best = pair(record["figures"]["best_round_accuracy"] for record in at.values())
            rows.append({**row, "best_round_accuracy": best})
    return rows


def _feedback(settings: Settings) -> str:
    released = settings["method"] == "hat-dfed-released"
    return str(settings.get("feedback", "test" if released else "validation"))


def _bandit(results: Results, scale: Scale) -> list[Row]:
    """Regret beside its bounds, where the probabilities end up, and what random links at the same budget do."""
    rows = []
    for each in (point(name, "hat-dfed", **setting) for name in scale.datasets for setting in settings_of_table_1()):
        if at := results.at(each):
            row: Row = {name: each[name] for name in ("dataset", *_SETTING)}
            for figure in ("least", "most", "correlation_with_price"):
                known = [record["bandit"].get(figure) for record in at.values()]
                row[f"probability_{figure}"] = pair(value for value in known if value is not None)
            row["regret_best_fixed"] = pair(record["figures"]["regret_best_fixed"] for record in at.values())
            row |= _bounds(each, at)
            row["against_random_links"] = _against_random(results, each)
            rows.append({**row, "seeds": list(at)})
    return rows


def _bounds(settings: Settings, at: Mapping[int, Record]) -> Row:
    """The printed bound, Eq. (25), and the one that holds."""
    rounds = next(iter(at.values()))["curve"]["round"][-1]
    printed = bound_as_printed(settings, rounds)
    regrets = [record["figures"]["regret_best_fixed"] for record in at.values()]
    return {
        "printed_bound": None if printed is None else round(printed, 2),
        "standard_bound": round(holding_bound(settings, rounds, rounds), 2),
        "runs_above_printed_bound": None if printed is None else sum(regret > printed for regret in regrets),
    }


def _against_random(results: Results, settings: Settings) -> Row | None:
    other = {**settings, "method": "hat-dfed-without-utc"}
    found = {
        name: paired_or_none(results.figures(settings, name), results.figures(other, name))
        for name in ("avg_accuracy", "link_energy_mj", "total_energy_mj")
    }
    return {name: interval(each) for name, each in found.items() if each is not None} or None
