"""The figures that a run is judged by: the paper's six metrics and a little more."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hatdfed.core.energy.energy_model import Cause
from hatdfed.core.fleet import FinalAccuracy
from hatdfed.core.refusals import describe_own
from hatdfed.core.round import Caught
from hatdfed.runs.confusion import summarise_confusion
from hatdfed.runs.records.energy_names import name_megajoules
from hatdfed.runs.round_row import JOULES, results_over
from hatdfed.setup.config import Config
from hatdfed.setup.layers import config_members
from hatdfed.setup.notes import is_always_silent

JOULES_PER_MJ = 1e6
_MOST_NAMED = 10  # servers in one sentence
METRICS = (
    "avg_accuracy",
    "std_accuracy",
    "best_accuracy",
    "worst_accuracy",
    "personal_accuracy",
    "total_energy_mj",
    "link_energy_mj",
)


def measured_on(results: Mapping[str, Any]) -> str:
    """Which data the final accuracies are of: "test", or "validation" where the servers have no test data."""
    return "validation" if results.get("accuracy_from") == "validation" else "test"


def summarise(config: Config, accuracy: FinalAccuracy, rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Accuracies in percent over servers on the test set after the last round, energies in MJ.

    The paper's "variance" has the size of a standard deviation in points; both are given (D19).
    """
    percent, own = 100 * accuracy.overall, 100 * accuracy.own
    known = [row["avg_accuracy"] for row in rounds if row["avg_accuracy"] is not None]  # nobody may have been there
    joules = {str(cause): math.fsum(row.get(name) or 0.0 for row in rounds) for cause, name in JOULES.items()}
    return name_megajoules(
        {
            "method": config.method,
            "dataset": config.dataset,
            "seed": config.seed,
            "avg_accuracy": float(percent.mean()),
            "var_accuracy": float(percent.var()),
            "std_accuracy": float(percent.std()),
            "best_accuracy": float(percent.max()),
            "worst_accuracy": float(percent.min()),
            "accuracy_by_server": percent.tolist(),
            "own_accuracy": float(own[_honest(config, len(own))].mean()),
            "own_accuracy_by_server": own.tolist(),
            "personal_accuracy": _percent_or_none(accuracy.personal),
            "metrics": {name: _mean_of_known(values) for name, values in accuracy.metrics.items()},
            "metrics_by_server": {name: [*map(_finite_or_none, values)] for name, values in accuracy.metrics.items()},
            **summarise_confusion(accuracy.confusion),
            "total_energy_mj": math.fsum(joules.values()) / JOULES_PER_MJ,
            "link_energy_mj": joules[Cause.LINK] / JOULES_PER_MJ,
            "energy_by_cause_mj": {cause: spent / JOULES_PER_MJ for cause, spent in joules.items()},
            "links_per_round": math.fsum(row["links"] for row in rounds) / len(rounds),
            "validation_accuracy": known[-1] if known else None,
            "best_round_accuracy": max(known, default=None),
            **results_over(rounds),
            "leaks_test": config.leaks_test,
            "rounds": len(rounds),
        }
    )


def _percent_or_none(shares: NDArray[np.float64]) -> float | None:
    """Their mean in percent; None where they are not known."""
    return None if np.isnan(shares).any() else 100 * float(shares.mean())


def _mean_of_known(values: NDArray[np.float64]) -> float | None:
    """Over the servers for which it is defined; None where there are none."""
    known = values[np.isfinite(values)]
    if not len(known):
        return None
    with np.errstate(over="ignore"):
        mean = known.mean()  # of claims of several servers: their sum may be too large for a number
    return float(mean if np.isfinite(mean) else (known / len(known)).sum())


def _finite_or_none(value: np.floating[Any]) -> float | None:
    return float(value) if np.isfinite(value) else None


def _honest(config: Config, measured: int) -> NDArray[np.bool_]:
    """[n] who of the measured servers does not lie; of a deployment in which some are missing, all."""
    is_liar = config_members(config).is_liar
    return ~is_liar if len(is_liar) == measured else np.ones(measured, dtype=bool)


def outcome_notes(config: Config, rounds: Sequence[Mapping[str, Any]], refused: Mapping[str, int]) -> list[str]:
    """What a user should know about how the run went; `refused` counts models that could not be used, by why."""
    found = describe_own(refused)
    where = f"any of the {len(rounds)} rounds" if len(rounds) > 1 else "the only round"
    if not any(row[JOULES[Cause.TRAINING]] for row in rounds):
        found.append(f"No server trained in {where}: {_find_obstacle(config, rounds)}.")
    elif not any(row["links"] for row in rounds) and not is_always_silent(config):  # else the settings say so
        found.append(f"No link was drawn in {where}: every server learned alone.")
    return found


def _find_obstacle(config: Config, rounds: Sequence[Mapping[str, Any]]) -> str:
    """Why nobody trained, as far as the rounds show it."""
    if all((row.get("servers_away") or 0) >= config.servers for row in rounds):
        return "all of them were away, as the table `servers` of the run's database says"
    if config.budget_joules is not None:
        return "budget_joules does not cover a single training"
    return "no data came, or the training policy let all of them rest"


def describe_end(summary: Mapping[str, Any], config: Config) -> list[str]:
    """A note on a run that a callback has ended before its last round."""
    if "stopped_by" not in summary:
        return []
    return [f"Ended by the callback {summary['stopped_by']} after {summary['rounds']} of {config.rounds} rounds."]


def describe_own_kind(summary: Mapping[str, Any]) -> list[str]:
    """A note on the accuracy that users of the servers see, where that is not the one on the common test data."""
    if summary["own_accuracy_by_server"] == summary["accuracy_by_server"]:
        return []
    return [
        f"On the test set as each server sees it: {summary['own_accuracy']:.1f} % on average over the honest servers "
        f"(own_accuracy). On the common test set: {summary['avg_accuracy']:.1f} %."
    ]


def describe_metrics(summary: Mapping[str, Any], config: Config) -> list[str]:
    """A note on the metrics of the settings and of a task other than classification, whose accuracy is a mean score."""
    known = {name: value for name, value in summary["metrics"].items() if value is not None}
    if not known:
        return []
    figures = ", ".join(f"{name} {value:.4g}" for name, value in known.items())
    found = f"On the test data, on average over servers: {figures}."
    if known.keys() <= set(config.metrics):
        return [found]
    return [f"{found} Accuracies are mean scores of {config.task or 'the task'}, times 100 (docs/data.md)."]


def describe_caught(caught: Sequence[Caught]) -> list[str]:
    """A sentence that names the servers whose reports were false."""
    if not caught:
        return []
    named = "; ".join(
        f"server {each.server} in round {each.round + 1} ({_as_clause(each.reason)})" for each in caught[:_MOST_NAMED]
    )
    more = f"; {len(caught) - _MOST_NAMED} more" if len(caught) > _MOST_NAMED else ""
    return [f"Caught with a false report, and without links since then: {named}{more}."]


def _as_clause(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:].rstrip(".")


def mean_and_deviation(values: Sequence[float] | NDArray[np.float64]) -> tuple[float, float]:
    """Mean and sample standard deviation, which is 0 of a single value."""
    return float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
