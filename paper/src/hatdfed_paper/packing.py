"""What is kept of one run: its figures, its curves at every few rounds, and where the bandit ended up."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hatdfed.core.links import LinkTable
from hatdfed.runs.result import RunResult
from hatdfed.runs.summary import JOULES_PER_MJ
from hatdfed.setup.config import WorldConfig
from hatdfed.setup.layers import config_members
from hatdfed.setup.run_identity import run_key
from hatdfed_paper.plan import Settings

CURVE_POINTS = 40
_FIGURES = (
    "avg_accuracy", "var_accuracy", "std_accuracy", "best_accuracy", "worst_accuracy", "personal_accuracy",
    "total_energy_mj", "link_energy_mj", "links_per_round", "best_round_accuracy", "regret_best_fixed",
    "regret_best_each_round",
)  # fmt: skip


def pack_run(result: RunResult) -> dict[str, Any]:
    """Small enough to keep thousands of them; the settings that were asked for are added by whoever asked."""
    record: dict[str, Any] = {
        "key": run_key(result.config),
        "figures": run_figures(result),
        "curve": _curve(result),
    }
    if result.config.policy.name == "link-bandit" and result.propensity is not None and result.link_joules is not None:
        links = LinkTable.all_of(result.config.servers)
        record["bandit"] = _bandit(links.from_dense(result.propensity), links.from_dense(result.link_joules))
    return record


def with_settings(record: dict[str, Any], settings: Settings) -> dict[str, Any]:
    """A record that says what it is the result of."""
    return {"key": record["key"], "settings": settings, **record}


def run_figures(result: RunResult) -> dict[str, Any]:
    """Test figures after the last round, the validation accuracy of that round, energies and regret."""
    summary = result.summary
    causes = {f"{cause}_energy_mj": summary["energy_by_cause_mj"][cause] for cause in ("upload", "training")}
    found = {name: summary[name] for name in _FIGURES} | causes | _own_figures(result)
    # Regret is None where the number of links changes from round to round.
    shown: dict[str, Any] = {name: None if value is None else _short(value) for name, value in found.items()}
    # What a run that learns from the test set measures during the run is no validation accuracy.
    shown["validation_accuracy"] = None if summary["leaks_test"] else _short(result.rounds[-1]["avg_accuracy"])
    return shown | {"leaks_test": summary["leaks_test"]}


def _own_figures(result: RunResult) -> dict[str, float]:
    """Where servers differ: accuracy of sound ones on data as they see them, and that of their smallest group."""
    if result.config.world == WorldConfig():
        return {}
    members = config_members(result.config)
    own, sound = np.array(result.summary["own_accuracy_by_server"]), members.is_sound
    sizes = np.bincount(members.last_group[sound], minlength=result.config.world.groups)
    smallest = int(np.argmin(np.where(sizes > 0, sizes, len(sound) + 1)))
    return {
        "own_accuracy": float(own[sound].mean()),
        "smallest_group_accuracy": float(own[sound & (members.last_group == smallest)].mean()),
    }


def _curve(result: RunResult) -> dict[str, list[Any]]:
    """Accuracy on the data that the bandit learns from, and what was spent until then."""
    rounds = result.rounds
    every = max(1, len(rounds) // CURVE_POINTS)
    kept = [index for index in range(len(rounds)) if (index + 1) % every == 0 or index == len(rounds) - 1]
    link = list(accumulate(row["link_joules"] / JOULES_PER_MJ for row in rounds))
    other = list(accumulate((row["upload_joules"] + row["training_joules"]) / JOULES_PER_MJ for row in rounds))
    return {
        "round": [index + 1 for index in kept],
        "accuracy": [round(rounds[index]["avg_accuracy"], 2) for index in kept],
        "link_mj": [_short(link[index], 4) for index in kept],
        "total_mj": [_short(link[index] + other[index], 4) for index in kept],
        "regret": [_rounded(rounds[index]["regret_best_fixed"]) for index in kept],
    }


def _bandit(probability: NDArray[np.float64], price: NDArray[np.float64]) -> dict[str, float | None]:
    """How far the last round's probabilities are from even, and whether they follow the prices."""
    apart = probability - probability.mean()
    scale = float(np.linalg.norm(apart) * np.linalg.norm(price - price.mean()))
    correlation = float(apart @ (price - price.mean())) / scale if scale > 0 else float("nan")
    return {
        "least": _short(float(probability.min())),
        "mean": _short(float(probability.mean())),
        "most": _short(float(probability.max())),
        "deviation": _short(float(probability.std())),
        "correlation_with_price": _short(correlation) if np.isfinite(correlation) else None,  # none where all is even
    }


def _short(value: float, digits: int = 6) -> float:
    return float(f"{value:.{digits}g}")


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)
