"""The figures that a run is judged by: the paper's six metrics and a little more."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hatdfed.core.energy.ledger import Cause
from hatdfed.core.refusals import describe_own
from hatdfed.runs.round_row import JOULES, results_over
from hatdfed.setup.config import Config
from hatdfed.setup.layers import is_always_silent

JOULES_PER_MJ = 1e6
METRICS = (
    "avg_accuracy",
    "std_accuracy",
    "best_accuracy",
    "worst_accuracy",
    "personal_accuracy",
    "total_energy_mj",
    "link_energy_mj",
)


def summarise(
    config: Config,
    test_accuracy: NDArray[np.float64],
    personal: NDArray[np.float64],
    rounds: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Accuracies in percent over servers on the test set after the last round, energies in MJ.

    The paper's "variance" has the size of a standard deviation in points; both are given (D19).
    """
    percent = 100 * test_accuracy
    known = [row["avg_accuracy"] for row in rounds if row["avg_accuracy"] is not None]  # nobody may have been there
    joules = {str(cause): math.fsum(row[name] for row in rounds) for cause, name in JOULES.items()}
    return {
        "method": config.method,
        "dataset": config.dataset,
        "seed": config.seed,
        "avg_accuracy": float(percent.mean()),
        "var_accuracy": float(percent.var()),
        "std_accuracy": float(percent.std()),
        "best_accuracy": float(percent.max()),
        "worst_accuracy": float(percent.min()),
        "accuracy_by_server": percent.tolist(),
        "personal_accuracy": 100 * float(personal.mean()),
        "total_energy_mj": math.fsum(joules.values()) / JOULES_PER_MJ,
        "link_energy_mj": joules[Cause.LINK] / JOULES_PER_MJ,
        "energy_by_cause_mj": {cause: spent / JOULES_PER_MJ for cause, spent in joules.items()},
        "links_per_round": math.fsum(row["links"] for row in rounds) / len(rounds),
        "best_round_accuracy": max(known, default=None),
        **results_over(rounds),
        "leaks_test": config.leaks_test,
        "rounds": len(rounds),
    }


def outcome_notes(config: Config, rounds: Sequence[Mapping[str, Any]], refused: Mapping[str, int]) -> list[str]:
    """What a user should know about how the run went; `refused` counts models that could not be used, by why."""
    found = describe_own(refused)
    if not any(row["links"] for row in rounds) and not is_always_silent(config):  # else the settings say so
        where = f"any of the {len(rounds)} rounds" if len(rounds) > 1 else "the only round"
        found.append(f"No link was drawn in {where}: every server learned alone.")
    return found


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float]:
    """Mean and sample standard deviation over seeds; 0 for a single one."""
    return float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
