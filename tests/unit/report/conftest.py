"""Records as a run would leave them, made up from a seed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hatdfed.report.run_data import RunData

MakeRun = Callable[..., RunData]


def made_up_run(
    num_servers: int = 5,
    rounds: int = 6,
    *,
    seed: int = 0,
    label: str = "hat-dfed",
    link_share: float = 0.3,
    joules: float = 1.0,
    accuracy: float | None = None,
    with_prices: bool = True,
    budget: int | None = None,
    learning_rate: float | None = None,
) -> RunData:
    """A run whose accuracy climbs, or stays at `accuracy`; every cost is a multiple of `joules`."""
    rng = np.random.default_rng(seed)
    climb = 90 - 70 * np.exp(-0.4 * np.arange(1, rounds + 1)[:, None]) + rng.normal(0, 3, (rounds, num_servers))
    reached = climb if accuracy is None else np.full_like(climb, accuracy)
    drawn = (rng.random((rounds, num_servers, num_servers)) < link_share) & ~np.eye(num_servers, dtype=bool)
    prices = joules * rng.uniform(1, 9, (num_servers, num_servers))
    mean = None if math.isnan(reached[-1, 0]) else reached[-1].mean()
    return RunData(
        label=label,
        title=f"{label} on digits, {num_servers} servers, seed {seed}",
        num_servers=num_servers,
        rounds=[_round(t, reached[t], drawn[t], prices, joules) for t in range(rounds)],
        servers=[
            {"t": t, "server": i, "accuracy": float(x), "num_samples": 9} for (t, i), x in np.ndenumerate(reached)
        ],
        links=[_link(*(int(end) for end in link), rng) for link in np.argwhere(drawn)],
        summary={"avg_accuracy": mean, "std_accuracy": 1.0},
        link_joules=prices if with_prices else None,
        budget=budget,
        learning_rate=learning_rate,
        horizon=rounds,
    )


def _round(t: int, accuracy: Any, drawn: Any, prices: Any, joules: float) -> dict[str, Any]:
    return {
        "t": t,
        "links": int(drawn.sum()),
        "avg_accuracy": float(accuracy.mean()),
        "best_accuracy": float(accuracy.max()),
        "worst_accuracy": float(accuracy.min()),
        "std_accuracy": float(accuracy.std()),
        "upload_joules": 2 * joules,
        "training_joules": 5 * joules,
        "link_joules": float(prices[drawn].sum()),
        "regret_best_fixed": 0.1 * t + 0.01 * float(accuracy.std()),
        "regret_best_each_round": 0.2 * t,
    }


def _link(t: int, receiver: int, sender: int, rng: np.random.Generator) -> dict[str, Any]:
    return {
        "t": t,
        "receiver": receiver,
        "sender": sender,
        "delivered": bool(rng.random() > 0.1),
        "propensity": float(rng.uniform(0.05, 1)),
        "utility": 0.5,
        "importance": None,
    }


@pytest.fixture(scope="session")
def make_run() -> MakeRun:
    return made_up_run
