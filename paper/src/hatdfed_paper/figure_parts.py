"""What the figures of the experiments are made of before they are drawn: plain numbers, and words about them.

A figure's data has panels, a panel has lines, and a line has as many `x` as values. Nothing here needs matplotlib.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hatdfed.runs.summary import mean_and_deviation
from hatdfed_paper.plan import FULL, PLUS, Settings
from hatdfed_paper.results import Record, Results

Data = dict[str, Any]
OURS = "hat-dfed"
WIDTH = 9.2  # inches
GREY = "#8A929B"  # of what is a bound and no rival
COLOURS = {"rnd": "#56B4E9", "d-psgd": "#0072B2", "dac": "#009E73", "sgp": "#CC79A7", OURS: "#D55E00", PLUS: "#882255"}
ENERGY, ACCURACY = "Total energy (MJ)", "Average test accuracy (%)"
SETTING_NOTE = "λ: the smaller, the more servers’ labels differ; ρ: chance of a device to be online."
WHISKERS_NOTE = "Whiskers: ± 1 standard error over worlds, which are the same at every point."


def lines_of(data: Data) -> list[Data]:
    """Every line of a figure, panel by panel."""
    return [line for panel in data["panels"] for line in panel["lines"]]


def drop_single_points(panels: Iterable[Data]) -> list[Data]:
    """The panels without lines of fewer than two points, which would show nothing."""
    return [{**panel, "lines": [line for line in panel["lines"] if len(line["x"]) > 1]} for panel in panels]


def curves_by_round(runs: Mapping[int, Record], name: str) -> dict[int, list[float]]:
    """A column of the curves, over seeds, at the rounds that all of them have."""
    columns = [dict(zip(run["curve"]["round"], run["curve"][name], strict=True)) for run in runs.values()]
    shared = set.intersection(*(set(column) for column in columns)) if columns else set()
    return {played: [column[played] for column in columns] for played in sorted(shared)}


def sweep_line(results: Results, swept: Iterable[Settings], over: str) -> Data:
    """Test accuracy and total energy at those of the points that have been run, in the order of what is swept."""
    known = sorted((found for found in swept if results.at(found)), key=lambda found: float(found[over]))
    line: Data = {"x": [found[over] for found in known]}
    line["seeds"] = min((len(results.at(found)) for found in known), default=0)
    for name, figure in (("accuracy", "avg_accuracy"), ("energy", "total_energy_mj")):
        spread = [_mean_and_error(list(results.figures(found, figure).values())) for found in known]
        line[name], line[f"{name}_error"] = [mean for mean, _ in spread], [error for _, error in spread]
    return line


def energy_line(results: Results, name: str, played: Mapping[str, Settings], energy: str) -> Data:
    """Test accuracy over one kind of energy, a point for each of `played` that has been run."""
    known = {method: settings for method, settings in played.items() if results.at(settings)}
    x, y = (
        [mean_and_deviation(list(results.figures(each, figure).values()))[0] for each in known.values()]
        for figure in (energy, "avg_accuracy")
    )
    seeds = min((len(results.at(each)) for each in known.values()), default=0)
    return {"name": name, "methods": list(known), "x": x, "y": y, "seeds": seeds}


def subtitle(data: Data, *notes: str) -> str:
    """How many seeds at least, whether the figures mean anything, and what else a reader has to know."""
    seeds = min(line["seeds"] for line in lines_of(data))
    counted = "1 seed" if seeds == 1 else f"{seeds} seeds"
    scale = "" if data["scale"] == FULL.name else f", {data['scale']} scale: the figures mean nothing"
    return " ".join([f"{counted}{scale}.", *notes])


def panel_name(setting: Sequence[float]) -> str:
    """λ and ρ of a panel or line."""
    return f"λ = {setting[0]:g}, ρ = {setting[1]:g}"


def span(values: Sequence[float], form: str) -> str:
    """From the least to the greatest, or the one that both are.

    >>> span([2.31, 1.04], ".1f"), span([2.31, 2.32], ".1f")
    ('1.0 to 2.3', '2.3')
    """
    low, high = (f"{end:{form}}".replace("-", "−") for end in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def points_apart(points: Sequence[float]) -> str:
    """How far above or below, in points.

    >>> points_apart([1.0, 2.0]), points_apart([-1.0, 2.0])
    ('1.0 to 2.0 points above', 'from 1.0 points below to 2.0 above')
    """
    if min(points) >= 0:
        return f"{span(points, '.1f')} points above"
    if max(points) <= 0:
        return f"{span([-each for each in points], '.1f')} points below"
    return f"from {-min(points):.1f} points below to {max(points):.1f} above"


def whole(value: float) -> str:
    """Without decimals; a half goes up."""
    return str(math.floor(value + 0.5))


def _mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Mean and its standard error; 0 of one value, which shows no spread."""
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return statistics.fmean(values), error
