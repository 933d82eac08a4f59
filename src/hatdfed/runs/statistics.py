"""What seeds say about methods: means, paired differences with their interval, and the price of a given accuracy.

A seed is a world that every method meets, so two methods are compared world by world (D20). Worlds differ by much more
than methods do; in the difference that part cancels.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.special import stdtrit  # Student's t: where it has a given probability to its left

from hatdfed.core.energy.energy_model import Cause
from hatdfed.runs.display import describe_comparison, format_table
from hatdfed.runs.records.energy_names import name_megajoules
from hatdfed.runs.round_row import JOULES, ROUND_COLUMNS
from hatdfed.runs.summary import METRICS, mean_and_deviation
from hatdfed.setup.run_identity import same_world

if TYPE_CHECKING:
    from hatdfed.runs.result import RunResult

CONFIDENCE = 0.95
TARGET_SHARE = 0.9  # of the best accuracy, where no target is named


class PairedDifference(NamedTuple):
    """Mean difference over the seeds that both have, and its 95 % interval; None where one seed shows no spread."""

    mean: float
    low: float | None
    high: float | None
    n: int  # pairs


@dataclass(frozen=True)
class Comparison:
    """The runs of each method, by seed, and the table that they make."""

    runs: dict[str, list[RunResult]]
    summary: list[dict[str, Any]]
    reference: str  # the method that differences are taken to
    target_accuracy: float | None  # percent of validation accuracy that joules are counted to

    @property
    def plot(self) -> Any:
        """Plots of all methods on any axes of matplotlib: a `hatdfed.report.plots.ComparisonPlots`."""
        return import_module("hatdfed.report.plots").ComparisonPlots(self)  # figures are above this package

    def __repr__(self) -> str:
        """One line."""
        return f"<Comparison: {self._describe()}>"

    def _repr_html_(self) -> str:
        """A row for each method, for notebooks."""
        return format_table(self.summary, self._describe())

    def _describe(self) -> str:
        first = next(iter(self.runs.values()))
        return describe_comparison(first[0].config, [row["method"] for row in self.summary], len(first))


def paired_difference(mine: Mapping[int, float], reference: Mapping[int, float]) -> PairedDifference:
    """`mine` − `reference`, seed by seed, with Student's interval; both map seeds to figures.

    >>> paired_difference({0: 51.0, 1: 82.0}, {1: 80.0, 0: 50.0}).mean
    1.5
    """
    seeds = sorted(mine.keys() & reference.keys())
    if not seeds:
        raise ValueError(f"no seed in common: {sorted(mine)} and {sorted(reference)}")
    differences = np.array([mine[seed] - reference[seed] for seed in seeds])
    mean, n = float(differences.mean()), len(seeds)
    if n == 1:
        return PairedDifference(mean, None, None, n)
    half = float(stdtrit(n - 1, (1 + CONFIDENCE) / 2)) * float(differences.std(ddof=1)) / math.sqrt(n)
    return PairedDifference(mean, mean - half, mean + half, n)


def paired_or_none(mine: Mapping[int, float], reference: Mapping[int, float]) -> PairedDifference | None:
    """`paired_difference`, or None where there is no seed in common."""
    return paired_difference(mine, reference) if mine.keys() & reference.keys() else None


def joules_to_reach(rounds: Iterable[Mapping[str, Any]], accuracy: float) -> float | None:
    """Joules spent up to the first round whose average validation accuracy is `accuracy` percent; None if none is."""
    spent: list[float] = []
    for row in rounds:
        spent += [row.get(name) or 0.0 for name in JOULES.values()]
        if row["avg_accuracy"] is not None and row["avg_accuracy"] >= accuracy:
            return math.fsum(spent)
    return None


def seconds_to_reach(rounds: Iterable[Mapping[str, Any]], accuracy: float) -> float | None:
    """Simulated seconds up to the same round; None also where rounds of an older version have none."""
    passed: list[float] = []
    for row in rounds:
        if (seconds := row.get("simulated_seconds")) is None:
            return None
        passed.append(seconds)
        if row["avg_accuracy"] is not None and row["avg_accuracy"] >= accuracy:
            return math.fsum(passed)
    return None


def time_of(result: RunResult, target_accuracy: float | None) -> float | None:
    """`seconds_to_reach` for a run, as `price_of`."""
    if target_accuracy is None or result.config.leaks_test:
        return None
    return seconds_to_reach(result.rounds, target_accuracy)


def price_of(result: RunResult, target_accuracy: float | None) -> float | None:
    """`joules_to_reach` for a run; None also where there is no target or accuracy was measured on the test set."""
    if target_accuracy is None or result.config.leaks_test:
        return None
    return joules_to_reach(result.rounds, target_accuracy)


def leaks(runs: Iterable[RunResult]) -> bool:
    """Whether any of these runs saw the test set; such a method is shown, but neither ranked nor drawn (D3)."""
    return any(result.config.leaks_test for result in runs)


def default_reference(runs: Mapping[str, Sequence[RunResult]]) -> str:
    """The first method, of those that did not see the test set if there are any."""
    return next((name for name in runs if not leaks(runs[name])), next(iter(runs)))


def default_target(runs: Mapping[str, Sequence[RunResult]]) -> float | None:
    """90 % of the best mean validation accuracy at the end; None where every method saw the test set."""
    final = [_mean_and_sd(_last_accuracy(seeds))[0] for seeds in runs.values() if not leaks(seeds)]
    known = [accuracy for accuracy in final if accuracy is not None]
    return TARGET_SHARE * max(known) if known else None


def method_row(
    method: str, runs: Sequence[RunResult], *, reference: Sequence[RunResult], target_accuracy: float | None
) -> dict[str, Any]:
    """One method over its seeds: flat, JSON-safe; `_sd` is a standard deviation, `_low` and `_high` an interval."""
    row: dict[str, Any] = {"method": method, "seeds": [result.config.seed for result in runs]}
    for metric in (*METRICS, "links_per_round", "seconds"):
        row[metric], row[f"{metric}_sd"] = _mean_and_sd([result.summary[metric] for result in runs])
    for name, column in ROUND_COLUMNS.items():
        if column.in_results and column.may_be_null:  # runs of older versions lack some
            row[name], row[f"{name}_sd"] = _mean_and_sd(result.summary.get(name) for result in runs)
    for cause in (cause for cause in Cause if cause is not Cause.LINK):  # that of links is one of the metrics
        spent = [result.summary["energy_by_cause_mj"].get(cause, 0.0) for result in runs]  # of an older version
        row[f"{cause}_energy_mj"], row[f"{cause}_energy_mj_sd"] = _mean_and_sd(spent)
    row["metrics"] = _mean_metrics(runs)
    row["leaks_test"] = leaks(runs)
    row["has_parameter_server"] = any(result.config.has_parameter_server for result in runs)
    row["validation_accuracy"], row["validation_accuracy_sd"] = _mean_and_sd(_last_accuracy(runs))
    return name_megajoules({**row, **_differences(runs, reference), **_prices(runs, target_accuracy)})


def summarise_runs(
    runs: Mapping[str, Sequence[RunResult]], reference: str | None = None, target_accuracy: float | None = None
) -> Comparison:
    """The table of these runs; `default_reference` and `default_target` say what is taken where none is named."""
    against = default_reference(runs) if reference is None else reference
    target = default_target(runs) if target_accuracy is None else target_accuracy
    rows = [_comparison_row(name, runs[name], runs[against], target) for name in runs]
    return Comparison({name: list(runs[name]) for name in runs}, rows, against, target)


def _comparison_row(
    name: str, runs: Sequence[RunResult], reference: Sequence[RunResult], target: float | None
) -> dict[str, Any]:
    """A method's row; without differences where its settings make another world of the same seed."""
    row = method_row(name, runs, reference=reference, target_accuracy=target)
    is_same = same_world(runs[0].config, reference[0].config)
    unknown = {} if is_same else {key: None for key in row if "_difference" in key}
    return {**row, **unknown, "same_world": is_same}


def _differences(runs: Sequence[RunResult], reference: Sequence[RunResult]) -> dict[str, float | None]:
    accuracy, energy = (_by_seed(runs, metric) for metric in ("avg_accuracy", "total_energy_mj"))
    before = _by_seed(reference, "total_energy_mj")
    percent = {seed: 100 * (energy[seed] / before[seed] - 1) for seed in energy if before.get(seed)}
    found = {
        "avg_accuracy_difference": paired_difference(accuracy, _by_seed(reference, "avg_accuracy")),
        "total_energy_mj_difference": paired_difference(energy, before),
        "total_energy_percent_difference": paired_difference(percent, dict.fromkeys(percent, 0.0)) if percent else None,
    }
    flat: dict[str, float | None] = {}
    for name, difference in found.items():
        mean, low, high = difference[:3] if difference is not None else (None, None, None)
        flat |= {name: mean, f"{name}_low": low, f"{name}_high": high}
    return flat


def _prices(runs: Sequence[RunResult], target_accuracy: float | None) -> dict[str, Any]:
    """Joules and simulated seconds to the target, over the seeds that reached it."""
    prices = [price_of(result, target_accuracy) for result in runs]
    mean, deviation = _mean_and_sd(prices)
    time, time_deviation = _mean_and_sd(time_of(result, target_accuracy) for result in runs)
    is_open = target_accuracy is None or leaks(runs)
    reached = None if is_open else sum(price is not None for price in prices)
    return {
        "joules_to_target": mean,
        "joules_to_target_sd": deviation,
        "simulated_seconds_to_target": time,
        "simulated_seconds_to_target_sd": time_deviation,
        "seeds_reached": reached,
    }


def _mean_metrics(runs: Sequence[RunResult]) -> dict[str, float | None]:
    """The task's own metrics; runs of older versions have none."""
    names = dict.fromkeys(name for result in runs for name in result.summary.get("metrics", {}))
    return {name: _mean_and_sd(result.summary.get("metrics", {}).get(name) for result in runs)[0] for name in names}


def _by_seed(runs: Iterable[RunResult], metric: str) -> dict[int, float]:
    return {result.config.seed: result.summary[metric] for result in runs}


def _last_accuracy(runs: Iterable[RunResult]) -> list[float | None]:
    return [result.rounds[-1]["avg_accuracy"] for result in runs]


def _mean_and_sd(values: Iterable[float | None]) -> tuple[float | None, float | None]:
    """Over the seeds that have a value; one value shows no deviation."""
    known = [value for value in values if value is not None]
    if not known:
        return None, None
    mean, deviation = mean_and_deviation(known)
    return mean, deviation if len(known) > 1 else None
