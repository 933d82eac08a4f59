"""What the draw of a round's links costs: capping and rounding, one core, for growing fleets.

taskset -c 0 python benchmarks/selection.py            prints a table, writes results/selection.json
"""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path

import numpy as np

from hatdfed.core.coordinator import links_in_budget
from hatdfed.core.drawing.budgeted import cap_to_budget, dependent_rounding, is_valid_draw
from hatdfed.randomness import stream
from hatdfed.runs.records.folder import environment

REPEATS = 15
SPREADS = {"close": 0.3, "apart": 1.0, "far apart": 5.0}  # standard deviation of the log-weights


def measure(servers: int, spread: float) -> dict[str, float]:
    """Median milliseconds of capping and of rounding for the links of `servers` servers, a third of them drawn."""
    rng = stream(0, "benchmark", servers)
    log_weights = rng.normal(0, spread, servers * (servers - 1))
    budget = links_in_budget(0.3, servers)
    capping, rounding = [], []
    for _ in range(REPEATS):
        start = time.perf_counter()
        probability = cap_to_budget(log_weights, budget)
        middle = time.perf_counter()
        drawn = dependent_rounding(probability, rng)
        end = time.perf_counter()
        assert is_valid_draw(drawn, probability)
        assert abs(probability.sum() - budget) <= 1e-9 * max(1, budget)
        capping.append(1e3 * (middle - start))
        rounding.append(1e3 * (end - middle))
    total = [a + b for a, b in zip(capping, rounding, strict=True)]
    return {
        "capping_ms": statistics.median(capping),
        "rounding_ms": statistics.median(rounding),
        "total_ms": statistics.median(total),
    }


def full_sort(servers: int) -> float:
    """What merely sorting as many weights takes, for comparison."""
    weights = np.random.default_rng(0).normal(size=servers * (servers - 1))
    times = []
    for _ in range(5):
        start = time.perf_counter()
        np.argsort(weights)
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times)


if __name__ == "__main__":
    rows = []
    for servers in (5, 50, 200, 1000):
        for name, spread in SPREADS.items():
            row = {"servers": servers, "links": servers * (servers - 1), "weights": name, **measure(servers, spread)}
            row["full_sort_ms"] = full_sort(servers)
            rows.append(row)
            print(
                "  ".join(
                    f"{key} {value:.2f}" if isinstance(value, float) else f"{key} {value}" for key, value in row.items()
                )
            )
    target = Path(__file__).parent / "results" / "selection.json"
    target.write_text(json.dumps({"machine": environment(), "rows": rows}, indent=1) + "\n")
