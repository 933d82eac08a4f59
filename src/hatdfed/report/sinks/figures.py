"""What is published of a run: curves, final figures and settings, under the same names in every tool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hatdfed.core.round import RoundRecord
from hatdfed.runs.records.cleaning import flat_settings, number
from hatdfed.runs.records.folder import RunFolder
from hatdfed.runs.round_row import ROUND_COLUMNS, metrics_in, round_row
from hatdfed.runs.summary import METRICS

Curves = dict[str, float]  # one step of each


class PublishedRun(NamedTuple):
    """What is published of a finished run."""

    settings: list[tuple[str, str]]
    rounds: list[tuple[int, Curves]]
    final: Curves


def read_published_run(folder: Path) -> PublishedRun:
    """Read what is published of a run from its folder."""
    run = RunFolder(folder)
    results = run.read_results() or {}
    leaks_test = bool(results.get("leaks_test"))
    rounds = [(step, name_by_data(curves, leaks_test=leaks_test)) for step, curves in steps(run.read_rounds())]
    return PublishedRun(flat_settings(results.get("config", {})), rounds, final_figures(results))


def steps(rounds: Sequence[Mapping[str, Any]]) -> list[tuple[int, Curves]]:
    """Convert rounds to steps, counted from 1."""
    return [(int(row["t"]) + 1, round_figures(row)) for row in rounds]


def round_figures(row: Mapping[str, Any]) -> Curves:
    """Read the values of one round, named as curves; unknown values are left out."""
    curves = {column.curve or name: name for name, column in ROUND_COLUMNS.items() if column.curve is not None}
    curves |= {f"validation_metrics/{name}": name for name in metrics_in([row])}
    return {curve: value for curve, name in curves.items() if (value := number(row.get(name))) is not None}


def figures_of_record(record: RoundRecord) -> Curves:
    """Read the values of a round that has just been played."""
    return round_figures(round_row(record, seconds=None))


def name_by_data(curves: Curves, *, leaks_test: bool) -> Curves:
    """Name accuracies and losses after the data they were measured on: the test set if that is the feedback (D3)."""
    if not leaks_test:
        return curves
    return {name.replace("validation_", "test_"): value for name, value in curves.items()}


def final_figures(results: Mapping[str, Any]) -> Curves:
    """Read the final metrics of a run."""
    named = {f"final/{name}": results.get(name) for name in (*METRICS, "links_per_round")}
    metrics = results.get("metrics")
    named |= {f"final/{name}": value for name, value in (metrics if isinstance(metrics, Mapping) else {}).items()}
    return {name: value for name, found in named.items() if (value := number(found)) is not None}
