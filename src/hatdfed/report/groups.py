"""Chosen runs as rows of a comparison: runs that differ only by seed are one row, paired with a reference by seed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from hatdfed.records.cleaning import number
from hatdfed.report import Record, pareto_front
from hatdfed.report.row_labels import row_labels
from hatdfed.statistics import PairedDifference, paired_or_none, same_world
from hatdfed.summary import JOULES_PER_MJ, mean_and_deviation

# Of what the table shows, in the same words everywhere; nothing is chosen by it.
FRONT = "the Pareto front of test accuracy and energy"
_FIGURES = ("avg_accuracy", "std_accuracy", "best_accuracy", "worst_accuracy", "total_joules", "link_joules")


class Run(NamedTuple):
    """A finished run, and where it is kept."""

    name: str
    settings: Mapping[str, Any]
    results: Record  # as in results.json


class Row(NamedTuple):
    """Runs that differ only by seed."""

    label: str
    seeds: list[int]
    figures: dict[str, tuple[float, float]]  # name -> mean and standard deviation over seeds; percent and joules
    points: PairedDifference | None  # accuracy against the reference; None where no world is shared
    energy_percent: PairedDifference | None
    same_world: bool  # whether a seed means the same as in the reference
    is_reference: bool
    leaks_test: bool
    is_on_front: bool
    runs: list[Run]


def comparison_rows(runs: Sequence[Run]) -> list[Row]:
    """One row for each method and its settings; the first is the reference, of those that did not see the test set."""
    groups = _groups(runs)
    if not groups:
        return []
    labels = row_labels([group[0].settings for group in groups])
    leaks = [any(bool(run.results.get("leaks_test")) for run in group) for group in groups]
    reference = next((index for index, leak in enumerate(leaks) if not leak), 0)
    figures = [{name: _over_seeds(group, name) for name in _FIGURES} for group in groups]
    spots = np.array([(row["total_joules"][0], row["avg_accuracy"][0]) for row in figures])
    fair = [index for index, leak in enumerate(leaks) if not leak]  # what saw the test set is never ranked (D3)
    front = {fair[index] for index in pareto_front(spots[fair])} if fair else set()
    return [
        Row(
            labels[index],
            sorted(_by_seed(group, "avg_accuracy")),
            figures[index],
            *_differences(group, groups[reference]),
            same_world=same_world(group[0].settings, groups[reference][0].settings),
            is_reference=index == reference,
            leaks_test=leaks[index],
            is_on_front=index in front,
            runs=group,
        )
        for index, group in enumerate(groups)
    ]


def figure(run: Run, name: str) -> float:
    """One figure of a run: percent, or joules."""
    if name.endswith("_joules"):
        return JOULES_PER_MJ * float(run.results[f"{name.removesuffix('_joules')}_energy_mj"])
    return float(run.results[name])


def is_complete(results: Record) -> bool:
    """Whether results hold every figure of a row."""
    wanted = [f"{n.removesuffix('_joules')}_energy_mj" if n.endswith("_joules") else n for n in _FIGURES]
    return all(number(results.get(name)) is not None for name in wanted)


def _groups(runs: Iterable[Run]) -> list[list[Run]]:
    found: dict[str, list[Run]] = {}
    for run in runs:
        kept = {key: value for key, value in run.settings.items() if key not in ("seed", "checkpoint_every")}
        found.setdefault(json.dumps(kept, sort_keys=True, default=str), []).append(run)
    return list(found.values())


def _differences(
    group: Sequence[Run], reference: Sequence[Run]
) -> tuple[PairedDifference | None, PairedDifference | None]:
    if not same_world(group[0].settings, reference[0].settings):
        return None, None
    points = paired_or_none(_by_seed(group, "avg_accuracy"), _by_seed(reference, "avg_accuracy"))
    energy, before = _by_seed(group, "total_joules"), _by_seed(reference, "total_joules")
    percent = {seed: 100 * (energy[seed] / before[seed] - 1) for seed in energy if before.get(seed)}
    return points, paired_or_none(percent, dict.fromkeys(percent, 0.0))


def _by_seed(runs: Iterable[Run], name: str) -> dict[int, float]:
    return {int(run.settings.get("seed", 0)): figure(run, name) for run in runs}


def _over_seeds(runs: Sequence[Run], name: str) -> tuple[float, float]:
    return mean_and_deviation(list(_by_seed(runs, name).values()))
