"""The numbers behind the figures of the experiments, as plain values; nothing here draws.

A figure's data has panels, a panel has lines, and a line has as many `x` as values. Numbers have four digits: what is
drawn is what can be compared.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hatdfed_paper.bounds import bound_as_printed, holding_bound
from hatdfed_paper.claims import Claims
from hatdfed_paper.plans import (
    GAIN_SHARES,
    QUALITY_SHARES,
    TABLE_METHODS,
    Scale,
    Settings,
    point,
    points,
    settings_of_table_1,
)
from hatdfed_paper.plus_figure_data import front_panels, link_panels, regime_panels
from hatdfed_paper.results import Record, Results

Data = dict[str, Any]
DIGITS = 4
OURS = "hat-dfed"
_SETTING = ("label_concentration", "device_online_probability")  # λ and ρ


def figure_data(results: Results, claims: Claims, scale: Scale) -> dict[str, Data]:
    """The figures that have a line to draw, by file name."""
    found: dict[str, Data] = {}
    for dataset in scale.datasets:
        drafts = {
            "accuracy": _learning_curves(results, dataset, "round"),
            "accuracy-vs-energy": _learning_curves(results, dataset, "total_mj"),
            "sparsity": _sparsity(results, claims, dataset, scale),
            "sensitivity": _sensitivity(results, claims, dataset, scale),
            "regret": _regret(results, dataset),
        }
        drawn = {
            kind: [{**panel, "lines": [line for line in panel["lines"] if _has_length(line)]} for panel in draft]
            for kind, draft in drafts.items()
        }
        drawn |= {
            "front": front_panels(results, dataset),
            "regimes": regime_panels(results, dataset, scale),
            "links": link_panels(results, dataset, scale),
        }
        for kind, panels in drawn.items():
            if any(panel["lines"] for panel in panels):
                data = {"kind": kind, "dataset": dataset, "scale": scale.name, "panels": panels}
                found[f"{kind}-{dataset}.png"] = _rounded(data)
    return found


def lines_of(data: Data) -> list[Data]:
    """Every line of a figure, panel by panel."""
    return [line for panel in data["panels"] for line in panel["lines"]]


def _has_length(line: Data) -> bool:
    return len(line["x"]) > 1


def _learning_curves(results: Results, dataset: str, x: str) -> list[Data]:
    """Validation accuracy over rounds, or over energy so far: a panel for each setting, a line for each method."""
    panels = []
    for setting in settings_of_table_1():
        lines = []
        for method in TABLE_METHODS:
            runs = results.at(point(dataset, method, **setting))
            means = {name: [statistics.fmean(v) for v in _by_round(runs, name).values()] for name in (x, "accuracy")}
            lines.append({"name": method, "seeds": len(runs), "x": means[x], "y": means["accuracy"]})
        panels.append({"setting": list(setting.values()), "lines": lines})
    return panels


def _regret(results: Results, dataset: str) -> list[Data]:
    """Regret of hat-dfed so far with its least and greatest seed, and the bounds: a panel for each setting."""
    panels = []
    for setting in settings_of_table_1():
        where = point(dataset, OURS, **setting)
        runs = results.at(where)
        regret = _by_round(runs, "regret")
        seen = list(regret.values())
        line = {
            "y": [statistics.fmean(values) for values in seen],
            "least": [min(values) for values in seen],
            "most": [max(values) for values in seen],
        }
        lines = [{"name": OURS, "seeds": len(runs), "x": list(regret), **line}]
        panels.append({"setting": list(setting.values()), "lines": lines, **_bounds(where, list(regret))})
    return panels


def _bounds(where: Settings, rounds: Sequence[int]) -> Data:
    """The standard bound round by round; and Eq. (25) as printed, if η is the one that it is about."""
    if not rounds:
        return {}
    horizon = rounds[-1]
    standard = [holding_bound(where, played, horizon) for played in rounds]
    return {"standard": standard, "printed": bound_as_printed(where, horizon)}


def _sparsity(results: Results, claims: Claims, dataset: str, scale: Scale) -> list[Data]:
    """Test accuracy and energy over γ: one panel, a line for each setting, with the published energies."""
    lines = []
    for setting in settings_of_table_1():
        swept = [
            found
            for found in points("sparsity", scale)
            if found["dataset"] == dataset and all(found[name] == setting[name] for name in _SETTING)
        ]
        line = _sweep(results, swept, "link_share")
        rows = {found["link_share"]: claims.row("sparsity", found) for found in swept}
        known = {share: row["total_energy_mj"][0] for share, row in rows.items() if row and share in line["x"]}
        published = {"published_x": list(known), "published_energy": list(known.values())}
        lines.append({"setting": list(setting.values()), **line, **published})
    return [{"lines": lines}]


def _sensitivity(results: Results, claims: Claims, dataset: str, scale: Scale) -> list[Data]:
    """Test accuracy and energy over α at three β, and over β at three α; with the values the paper calls best."""
    swept = [found for found in points("sensitivity", scale) if found["dataset"] == dataset]
    panels = []
    for over, fixed, levels, best in (
        ("gain_share", "quality_share", QUALITY_SHARES[1:4], "best_alpha"),
        ("quality_share", "gain_share", GAIN_SHARES[1:4], "best_beta"),
    ):
        lines = [
            {"level": level, **_sweep(results, [found for found in swept if found[fixed] == level], over)}
            for level in levels
        ]
        panels.append({"over": over, "fixed": fixed, "best": claims.sensitivity[best], "lines": lines})
    return panels


def _sweep(results: Results, swept: Iterable[Settings], over: str) -> Data:
    """Test accuracy and total energy at those of the points that have been run, in the order of what is swept."""
    known = sorted((found for found in swept if results.at(found)), key=lambda found: float(found[over]))
    line: Data = {"x": [found[over] for found in known]}
    line["seeds"] = min((len(results.at(found)) for found in known), default=0)
    for name, figure in (("accuracy", "avg_accuracy"), ("energy", "total_energy_mj")):
        spread = [_mean_and_error(list(results.figures(found, figure).values())) for found in known]
        line[name], line[f"{name}_error"] = [mean for mean, _ in spread], [error for _, error in spread]
    return line


def _by_round(runs: Mapping[int, Record], name: str) -> dict[int, list[float]]:
    """A column of the curves, over seeds, at the rounds that all of them have."""
    columns = [dict(zip(run["curve"]["round"], run["curve"][name], strict=True)) for run in runs.values()]
    shared = set.intersection(*(set(column) for column in columns)) if columns else set()
    return {played: [column[played] for column in columns] for played in sorted(shared)}


def _mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Mean and its standard error; 0 of one value, which shows no spread."""
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return statistics.fmean(values), error


def _rounded(value: Any) -> Any:
    """The same with four digits in every number that is not whole."""
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value
