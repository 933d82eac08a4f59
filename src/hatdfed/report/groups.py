"""Rows of a comparison: runs of one world that differ only by seed are one row, paired with a reference row by seed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hatdfed.report.run_data import Record, pareto_front
from hatdfed.runs.records.cleaning import flat_settings, number, text
from hatdfed.runs.statistics import PairedDifference, paired_or_none
from hatdfed.runs.summary import JOULES_PER_MJ, mean_and_deviation
from hatdfed.setup.run_identity import result_key

# The words for the front wherever it is shown. Test accuracies are shown and never rank anything.
FRONT = "the Pareto front of validation accuracy and energy"
_FIGURES = ("avg_accuracy", "std_accuracy", "best_accuracy", "worst_accuracy", "total_joules", "link_joules")


class FinishedRun(NamedTuple):
    """A finished run."""

    name: str
    settings: Mapping[str, Any]
    results: Record  # as in results.json
    validation: float | None = None  # mean accuracy in the last round, percent, where that is known
    folder: Path | None = None  # where that is known; a comparison that it is part of lies there


class ComparisonRow(NamedTuple):
    """Runs that differ only by seed."""

    label: str
    seeds: list[int]
    figures: dict[str, tuple[float, float]]  # name -> mean and standard deviation over seeds; percent and joules
    points: PairedDifference | None  # accuracy against the reference; None where no seed is shared
    energy_percent: PairedDifference | None
    is_reference: bool
    leaks_test: bool
    has_parameter_server: bool
    is_on_front: bool
    runs: list[FinishedRun]


def make_comparison_rows(runs: Sequence[FinishedRun], reference_run: str | None = None) -> list[ComparisonRow]:
    """Make one row for each method and its settings, of runs of one world.

    The reference is the row of the run of that name, or the first row that did not see the test set.
    """
    groups = _group_by_settings(runs)
    if not groups:
        return []
    labels = row_labels([group[0].settings for group in groups])
    leaks = [any(bool(run.results.get("leaks_test")) for run in group) for group in groups]
    reference = _find_reference(groups, leaks, reference_run)
    figures = [{name: _over_seeds(group, name) for name in _FIGURES} for group in groups]
    spots = np.array(
        [(row["total_joules"][0], _mean_validation(group)) for row, group in zip(figures, groups, strict=True)]
    )
    # Runs that saw the test set are never ranked (D3).
    fair = [index for index, leak in enumerate(leaks) if not leak and np.isfinite(spots[index, 1])]
    front = {fair[index] for index in pareto_front(spots[fair])} if fair else set()
    return [
        ComparisonRow(
            labels[index],
            sorted(_by_seed(group, "avg_accuracy")),
            figures[index],
            *_compute_differences(group, groups[reference]),
            is_reference=index == reference,
            leaks_test=leaks[index],
            has_parameter_server=_has_parameter_server(group[0].settings),
            is_on_front=index in front,
            runs=group,
        )
        for index, group in enumerate(groups)
    ]


def _has_parameter_server(settings: Record) -> bool:
    policy = settings.get("policy")
    return isinstance(policy, Mapping) and policy.get("name") == "parameter-server"


def _find_reference(groups: Sequence[Sequence[FinishedRun]], leaks: Sequence[bool], run_name: str | None) -> int:
    named = [index for index, group in enumerate(groups) if any(run.name == run_name for run in group)]
    return next(iter([*named, *(index for index, leak in enumerate(leaks) if not leak)]), 0)


def _mean_validation(group: Sequence[FinishedRun]) -> float:
    """Mean over seeds; a run that is there twice counts once, as in the other figures."""
    known = {run.settings.get("seed", 0): np.nan if run.validation is None else run.validation for run in group}
    return float(np.mean(list(known.values())))


def read_figure(run: FinishedRun, name: str) -> float:
    """Read one figure of a run, in percent or joules."""
    if name.endswith("_joules"):
        return JOULES_PER_MJ * float(run.results[f"{name.removesuffix('_joules')}_energy_mj"])
    return float(run.results[name])


def is_complete(results: Record) -> bool:
    """Whether results contain every figure of a row."""
    wanted = [f"{n.removesuffix('_joules')}_energy_mj" if n.endswith("_joules") else n for n in _FIGURES]
    return all(number(results.get(name)) is not None for name in wanted)


def _group_by_settings(runs: Iterable[FinishedRun]) -> list[list[FinishedRun]]:
    found: dict[str, list[FinishedRun]] = {}
    for run in runs:
        found.setdefault(result_key(run.settings, but=("seed",)), []).append(run)
    return list(found.values())


def _compute_differences(
    group: Sequence[FinishedRun], reference: Sequence[FinishedRun]
) -> tuple[PairedDifference | None, PairedDifference | None]:
    points = paired_or_none(_by_seed(group, "avg_accuracy"), _by_seed(reference, "avg_accuracy"))
    energy, before = _by_seed(group, "total_joules"), _by_seed(reference, "total_joules")
    percent = {seed: 100 * (energy[seed] / before[seed] - 1) for seed in energy if before.get(seed)}
    return points, paired_or_none(percent, dict.fromkeys(percent, 0.0))


def _by_seed(runs: Iterable[FinishedRun], name: str) -> dict[int, float]:
    return {int(run.settings.get("seed", 0)): read_figure(run, name) for run in runs}


def _over_seeds(runs: Sequence[FinishedRun], name: str) -> tuple[float, float]:
    return mean_and_deviation(list(_by_seed(runs, name).values()))


_NOT_A_DIFFERENCE = ("seed", "checkpoint_every", "method")
_MOST_NAMED = 4  # settings in the label of a row

Flat = Mapping[str, str]  # values by dotted names, as in policy.thrift


def row_labels(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Make a unique label for each row; figures identify rows by them."""
    return make_labels([text(one.get("method"), 60) for one in settings], [_flatten(one) for one in settings])


def make_labels(names: Sequence[str], flat: Sequence[Flat]) -> list[str]:
    """Make unique labels of names; equal names are followed by the settings in which they differ."""
    named = []
    for name, mine in zip(names, flat, strict=True):
        others = [other for other, its in zip(flat, names, strict=True) if its == name]
        named.append(
            (name, _format_settings(mine, [key for key in mine if any(_differs(key, mine, o) for o in others)]))
        )
    counts = [named[: index + 1].count(one) if named.count(one) > 1 else 0 for index, one in enumerate(named)]
    return [f"{name}{f' no. {n}' if n else ''}{words}" for (name, words), n in zip(named, counts, strict=True)]


def _flatten(settings: Mapping[str, Any]) -> Flat:
    return dict(flat_settings({key: value for key, value in settings.items() if key not in _NOT_A_DIFFERENCE}))


def _differs(key: str, mine: Flat, other: Flat) -> bool:
    """Whether a setting distinguishes two rows; settings of different policies do not, because the names do."""
    name = f"{key.rpartition('.')[0]}.name"
    return mine[key] != other.get(key) and (key == name or mine.get(name) == other.get(name))


def _format_settings(mine: Flat, keys: Sequence[str]) -> str:
    """Format settings in brackets, as ` (cool_down 0.5, thrift 8)`; empty if there are none."""
    short = _shorten_keys(keys)
    words = [f"{text(short[key], 30)} {text(mine[key], 30)}" for key in keys[:_MOST_NAMED]]
    return f" ({', '.join([*words, *(['…'] if len(keys) > _MOST_NAMED else [])])})" if words else ""


def _shorten_keys(keys: Sequence[str]) -> dict[str, str]:
    """Shorten each key to its last part, a component's name to its section; ambiguous keys stay as they are."""
    last = {key: key.removesuffix(".name").rpartition(".")[2] for key in keys}
    return {key: end if list(last.values()).count(end) == 1 else key for key, end in last.items()}
