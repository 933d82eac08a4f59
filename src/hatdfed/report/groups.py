"""Chosen runs as rows of a comparison: runs that differ only by seed are one row, paired with a reference by seed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from hatdfed.report.run_data import Record, pareto_front
from hatdfed.runs.records.cleaning import flat_settings, number, text
from hatdfed.runs.statistics import PairedDifference, paired_or_none
from hatdfed.runs.summary import JOULES_PER_MJ, mean_and_deviation
from hatdfed.setup.run_identity import result_key, same_world

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
    is_here = [same_world(group[0].settings, groups[reference][0].settings) for group in groups]
    # What saw the test set is never ranked (D3), nor are joules of other prices or accuracies on other data.
    fair = [index for index, leak in enumerate(leaks) if is_here[index] and not leak]
    front = {fair[index] for index in pareto_front(spots[fair])} if fair else set()
    return [
        Row(
            labels[index],
            sorted(_by_seed(group, "avg_accuracy")),
            figures[index],
            *_differences(group, groups[reference]),
            same_world=is_here[index],
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
        found.setdefault(result_key(run.settings, but=("seed",)), []).append(run)
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


_NOT_A_DIFFERENCE = ("seed", "checkpoint_every", "method")
_MOST_NAMED = 4  # settings in the label of a row

Flat = Mapping[str, str]  # values by dotted names, as in policy.thrift


def row_labels(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """A label for each row, none twice: pictures know their rows by them."""
    methods = [text(one.get("method"), 60) for one in settings]
    flat = [_flat(one) for one in settings]
    named = []
    for mine, method in zip(flat, methods, strict=True):
        others = [other for other, its in zip(flat, methods, strict=True) if its == method]
        named.append((method, _named(mine, [key for key in mine if any(_differs(key, mine, o) for o in others)])))
    counts = [named[: index + 1].count(one) if named.count(one) > 1 else 0 for index, one in enumerate(named)]
    return [f"{method}{f' no. {n}' if n else ''}{words}" for (method, words), n in zip(named, counts, strict=True)]


def _flat(settings: Mapping[str, Any]) -> Flat:
    return dict(flat_settings({key: value for key, value in settings.items() if key not in _NOT_A_DIFFERENCE}))


def _differs(key: str, mine: Flat, other: Flat) -> bool:
    """Whether a setting tells two rows apart; those of another policy do not, for its name says enough."""
    name = f"{key.rpartition('.')[0]}.name"
    return mine[key] != other.get(key) and (key == name or mine.get(name) == other.get(name))


def _named(mine: Flat, keys: Sequence[str]) -> str:
    """The settings in brackets, as ` (cool_down 0.5, thrift 8)`; nothing where there are none."""
    short = _short(keys)
    words = [f"{text(short[key], 30)} {text(mine[key], 30)}" for key in keys[:_MOST_NAMED]]
    return f" ({', '.join([*words, *(['…'] if len(keys) > _MOST_NAMED else [])])})" if words else ""


def _short(keys: Sequence[str]) -> dict[str, str]:
    """The last part of each name, its section for the name of a component, all of it where that is ambiguous."""
    last = {key: key.removesuffix(".name").rpartition(".")[2] for key in keys}
    return {key: end if list(last.values()).count(end) == 1 else key for key, end in last.items()}
