"""The table of a sweep: one row a point, means over seeds with their deviation and interval, the front marked.

Rows are made from run folders alone, so they are the same however often the sweep was stopped. What is marked was
judged by validation accuracy: a sweep is there to choose settings, and nothing is chosen on the test set. Of a search,
test figures are not shown at all.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hatdfed.core.energy.energy_model import Cause
from hatdfed.report.comparison_files import csv_text
from hatdfed.report.importance_figure import importance_figure
from hatdfed.report.latex import make_sweep_table
from hatdfed.report.style import SCREEN, FigureStyle, StyledFigure, save_figures
from hatdfed.report.sweep_figure import sweep_figure
from hatdfed.runs.records.checkpoint import write_atomically
from hatdfed.runs.round_row import JOULES, joules_of
from hatdfed.runs.statistics import CONFIDENCE, paired_difference
from hatdfed.runs.summary import JOULES_PER_MJ, mean_and_deviation
from hatdfed.sweeps.file import SweepFile
from hatdfed.sweeps.points import Point

Row = dict[str, Any]
Figures = dict[str, Any]

TEST_METRICS = ("avg_accuracy", "worst_accuracy")
METRICS = ("validation_accuracy", "validation_worst", *TEST_METRICS, "total_joules", "link_joules", "links_per_round")
# What may be sought: the column of the table, and whether more of it is better.
OBJECTIVES = {
    "accuracy": ("validation_accuracy", True),
    "worst_accuracy": ("validation_worst", True),
    "joules": ("total_joules", False),
    "link_joules": ("link_joules", False),
}
DEFAULT_OBJECTIVES = ("accuracy", "joules")


@dataclass(frozen=True)
class Outcome:
    """The points of a sweep, a row for each, and what else is known of a search."""

    points: Sequence[Point]
    rows: list[Row]
    search: dict[str, Any] | None = None


def figures_of(results: Mapping[str, Any], rounds: Sequence[Mapping[str, Any]]) -> Figures:
    """Accuracies in percent: of validation in the last round that has one, of the test set where it was read."""
    known = [row for row in rounds if row["avg_accuracy"] is not None]
    return {
        "validation_accuracy": known[-1]["avg_accuracy"] if known else None,
        "validation_worst": known[-1]["worst_accuracy"] if known else None,
        **{name: results[name] for name in TEST_METRICS},
        "total_joules": JOULES_PER_MJ * results["total_energy_mj"],
        "link_joules": JOULES_PER_MJ * results["link_energy_mj"],
        "links_per_round": results["links_per_round"],
        "leaks_test": bool(results["leaks_test"]),
    }


def figures_after(rounds: Sequence[Mapping[str, Any]], count: int) -> Figures:
    """The figures of a run as they were after so many rounds; none of them is of the test set."""
    played = rounds[:count]
    known = [row for row in played if row["avg_accuracy"] is not None]
    return {
        "validation_accuracy": known[-1]["avg_accuracy"] if known else None,
        "validation_worst": known[-1]["worst_accuracy"] if known else None,
        "total_joules": math.fsum(map(joules_of, played)),
        "link_joules": math.fsum(row[JOULES[Cause.LINK]] or 0.0 for row in played),
    }


def table(
    points: Sequence[Point],
    figures: Mapping[str, Figures],
    objectives: Sequence[str] = DEFAULT_OBJECTIVES,
    *,
    with_test: bool = True,
) -> list[Row]:
    """A row for each point; `figures` are those of the runs that are done, by name."""
    metrics = [name for name in METRICS if with_test or name not in TEST_METRICS]
    rows = [_row(point, figures, metrics) for point in points]
    front = pareto(rows, objectives, [point.world for point in points])
    return [{**row, "is_on_front": index in front} for index, row in enumerate(rows)]


def pareto(rows: Sequence[Row], objectives: Sequence[str], worlds: Sequence[str] = ()) -> set[int]:
    """Rows to which no other is better at one thing and worse at none. What saw the test set has no part.

    Only rows of the same one of `worlds`, if these are given, are held against each other.
    """
    signed = {}
    for index, row in enumerate(rows):
        values = [(row[column], up) for column, up in (OBJECTIVES[name] for name in objectives)]
        if not row["leaks_test"] and all(value is not None for value, _ in values):
            signed[index] = tuple(value if up else -value for value, up in values)

    def is_beaten(index: int) -> bool:
        mine = signed[index]
        return any(
            all(a >= b for a, b in zip(theirs, mine, strict=True)) and theirs != mine
            for other, theirs in signed.items()
            if other != index and (not worlds or worlds[other] == worlds[index])
        )

    return {index for index in signed if not is_beaten(index)}


def _row(point: Point, figures: Mapping[str, Figures], metrics: Sequence[str]) -> Row:
    found = {run.config.seed: figures[run.name] for run in point.runs if run.name in figures}
    row: Row = {
        "point": point.label,
        "settings": dict(point.settings),
        "seeds": list(found),
        "missing_seeds": [run.config.seed for run in point.runs if run.config.seed not in found],
        "leaks_test": any(one["leaks_test"] for one in found.values()),
    }
    if point.runs[0].config.has_parameter_server:
        row["has_parameter_server"] = True  # a mark for tables; all others keep the columns of 0.1
    for metric in metrics:
        by_seed = {seed: one[metric] for seed, one in found.items() if one[metric] is not None}
        mean, deviation, low, high = None, None, None, None
        if by_seed:
            mean, low, high, seeds = paired_difference(by_seed, dict.fromkeys(by_seed, 0.0))
            deviation = mean_and_deviation(list(by_seed.values()))[1] if seeds > 1 else None
        row |= {metric: mean, f"{metric}_sd": deviation, f"{metric}_low": low, f"{metric}_high": high}
    return row


def summary_document(
    sweep: SweepFile, rows: Sequence[Row], failed: Mapping[str, str], search: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The table and what it is of; nothing in it depends on when and how often the sweep was played."""
    document = {
        "version": sweep.version,
        "confidence": CONFIDENCE,
        "ranked_by": "validation accuracy",
        "rows": list(rows),
        "failed": dict(sorted(failed.items())),
    }
    return document if search is None else {**document, "search": dict(search)}


def write_sweep_files(sweep: SweepFile, outcome: Outcome, failed: Mapping[str, str], folder: Path) -> None:
    """Write summary.json, summary.csv, summary.tex and, where there is something to see, the figures."""
    rows, search = outcome.rows, outcome.search
    content = summary_document(sweep, rows, failed, search)
    document = json.dumps(content, indent=2, ensure_ascii=False, default=str) + "\n"
    write_atomically(folder / "summary.json", document.encode())
    write_atomically(folder / "summary.csv", csv_text(rows).encode())
    write_atomically(folder / "summary.tex", make_sweep_table(rows).encode())
    save_figures(draw_sweep(sweep, rows, [point.world for point in outcome.points], search), folder)


def draw_sweep(
    sweep: SweepFile,
    rows: Sequence[Row],
    worlds: Sequence[str],
    search: Mapping[str, Any] | None = None,
    style: FigureStyle = SCREEN,
) -> dict[str, StyledFigure]:
    """Draw the rows, each of one of the `worlds`, and the importance of settings, by the name of the figure.

    Nothing where there is nothing to see.
    """
    drawn = _draw_pareto(sweep, rows, worlds, style)
    if search is not None and search["importance"]["objectives"]:
        drawn["importance"] = importance_figure(search["importance"], style)
    return drawn


def _draw_pareto(
    sweep: SweepFile, rows: Sequence[Row], worlds: Sequence[str], style: FigureStyle
) -> dict[str, StyledFigure]:
    x, y = axes_of(() if sweep.search is None else sweep.search.objectives)
    fair = [
        index for index, row in enumerate(rows) if not row["leaks_test"] and row[x] is not None and row[y] is not None
    ]
    if not fair:
        return {}
    return {"pareto": sweep_figure([rows[index] for index in fair], [worlds[index] for index in fair], x, y, style)}


def axes_of(objectives: Sequence[str]) -> tuple[str, str]:
    """The columns that the picture shows: the first objective to be small, and the first to be large."""
    columns = [OBJECTIVES[name] for name in objectives]
    x = next((column for column, up in columns if not up), "total_joules")
    return x, next((column for column, up in columns if up), "validation_accuracy")
