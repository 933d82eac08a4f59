"""Chosen runs side by side, world by world, for the page of comparisons."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import hatdfed.report.findings as fd
from hatdfed.dashboard.catalogue import Card
from hatdfed.dashboard.run_views import select_rounds, to_json_numbers
from hatdfed.errors import HatdfedError
from hatdfed.report.groups import FRONT, ComparisonRow, FinishedRun, is_complete, read_figure
from hatdfed.report.looks import find_looks
from hatdfed.report.run_data import Vector, column, finite, mean_and_sd
from hatdfed.report.worlds import ComparedWorld, StoredOrder, compare_worlds
from hatdfed.runs.records.cleaning import text, whole
from hatdfed.runs.records.reading import reading
from hatdfed.runs.records.small_files import read_document
from hatdfed.runs.statistics import PairedDifference
from hatdfed.runs.summary import measured_on

MAX_COMPARED = 60
_LONGEST_LABEL = 90
_LONGEST_IN_TITLE = 60
_MAX_NAMED = 4  # rows in a title


class ComparedRuns(NamedTuple):
    """The runs that can be compared, and why the others cannot."""

    worlds: list[ComparedWorld]
    folders: dict[str, Path]  # by a run's name
    left_out: list[str]  # sentences


def select_comparable(found: Sequence[tuple[Path, Card]], against: str = "") -> ComparedRuns:
    """Make comparison rows of those runs that are finished, world by world.

    The first row of a world is its reference: that of the run `against`, else that of the comparison they are part of.
    """
    runs, folders, left_out = [], {}, []
    for folder, card in found[:MAX_COMPARED]:
        if card.trouble or not card.is_finished:
            left_out.append(card.trouble or f"{card.name} is not finished, so it has no test accuracy yet.")
            continue
        if card.stopped_by is not None:
            left_out.append(f"{card.name} was ended by {card.stopped_by} after {card.played} of {card.rounds} rounds.")
            continue
        try:
            results = read_document(folder, "results.json")
        except HatdfedError as error:  # the file has changed since the card was made
            left_out.append(str(error))
            continue
        if measured_on(results) != "test":
            left_out.append(f"{card.name} has no test accuracy: its servers have no test data.")
            continue
        settings = results.get("config")
        if not isinstance(settings, dict) or whole(settings.get("seed")) is None or not is_complete(results):
            left_out.append(f"{card.name} has incomplete results.")
            continue
        last = finite(_read_mean_accuracy(folder))
        runs.append(FinishedRun(card.id, settings, results, float(last[-1]) if len(last) else None, folder))
        folders[card.id] = folder
    if len(found) > MAX_COMPARED:
        left_out.append(f"Only the first {MAX_COMPARED} of {len(found)} chosen runs are compared.")
    order = StoredOrder()
    runs.sort(key=lambda run: order.find_place(folders[run.name], str(run.settings.get("method"))))
    worlds = sorted(compare_worlds(runs, order, against), key=lambda world: against not in _list_names(world))
    return ComparedRuns([_put_reference_first(world) for world in worlds], folders, left_out)


def _list_names(world: ComparedWorld) -> list[str]:
    return [run.name for row in world.rows for run in row.runs]


def _put_reference_first(world: ComparedWorld) -> ComparedWorld:
    return world._replace(rows=sorted(world.rows, key=lambda row: not row.is_reference))


def make_comparison_view(chosen: ComparedRuns) -> dict[str, Any]:
    """Collect the data for the charts of a comparison."""
    return {"worlds": [_view_world(world, chosen.folders) for world in chosen.worlds]}


def _view_world(world: ComparedWorld, folders: dict[str, Path]) -> dict[str, Any]:
    looks = find_looks([str(row.runs[0].settings.get("method")) for row in world.rows])
    rows = [_make_row(row, folders, look) for row, look in zip(world.rows, looks, strict=True)]
    titles = {"front": make_front_title(world.rows), "accuracy": _make_accuracy_title(rows)}
    return {"name": world.name, "rows": rows, "titles": titles}


def make_front_title(rows: Sequence[ComparisonRow]) -> str:
    """Say which rows are on the front of accuracy and energy."""
    labels = [text(row.label, _LONGEST_IN_TITLE) for row in rows if row.is_on_front]
    if len(labels) > _MAX_NAMED:
        return f"{len(labels)} of {sum(not row.leaks_test for row in rows)} methods are on {FRONT}"
    named = [", ".join(labels[:-1]), *labels[-1:]]
    return f"On {FRONT}: {' and '.join(filter(None, named)) or 'none'}"


def _make_accuracy_title(rows: Sequence[dict[str, Any]]) -> str:
    """Say whose mean is highest at the end, of rows of one world; what saw the test set is not ranked (D3)."""
    ends = [(text(row["label"], _LONGEST_IN_TITLE), row["curve"]["mean"][-1:]) for row in rows if not row["leaks_test"]]
    known = [(end[0], label) for label, end in ends if end and end[0] is not None]
    accuracy, best = max(known, key=lambda one: one[0], default=(float("nan"), ""))
    return fd.best_finding(best, accuracy, len(ends))


def _make_row(row: ComparisonRow, folders: dict[str, Path], look: int) -> dict[str, Any]:
    seeds = [
        {"joules": read_figure(run, "total_joules"), "accuracy": read_figure(run, "avg_accuracy")} for run in row.runs
    ]
    return {
        "label": text(row.label, _LONGEST_LABEL),
        "figures": {name: {"mean": mean, "sd": sd} for name, (mean, sd) in row.figures.items()},
        "seeds": seeds,
        "points": _difference_to_dict(row.points),
        "energy_percent": _difference_to_dict(row.energy_percent),
        "is_on_front": row.is_on_front,
        "is_reference": row.is_reference,
        "look": look,
        "leaks_test": row.leaks_test,
        "has_parameter_server": row.has_parameter_server,
        "curve": _compute_curve([folders[run.name] for run in row.runs]),
    }


def _difference_to_dict(difference: PairedDifference | None) -> dict[str, float | int | None] | None:
    return None if difference is None else difference._asdict()


def _compute_curve(folders: Sequence[Path]) -> dict[str, list[float | None]]:
    """Compute the mean validation accuracy by round, and its standard deviation over seeds."""
    lines = [line for folder in folders if len(line := _read_mean_accuracy(folder))]
    longest = max(map(len, lines), default=0)
    kept = select_rounds(longest)
    values = np.array([mean_and_sd(finite(np.array([line[i] for line in lines if i < len(line)]))) for i in kept])
    mean, sd = values.reshape(-1, 2).T
    return {"played": [float(index + 1) for index in kept], "mean": to_json_numbers(mean), "sd": to_json_numbers(sd)}


def _read_mean_accuracy(folder: Path) -> Vector:
    try:
        with reading(folder / "run.sqlite") as reader:
            return column([{"accuracy": value} for value in reader.accuracies()], "accuracy")
    except HatdfedError:  # the table still has the run's results
        return np.array([])
