"""What a round costs the coordinator, by its two halves, one core, for growing fleets.

OMP_NUM_THREADS=1 taskset -c 0 python benchmarks/coordinator.py     prints a table, writes results/coordinator.json
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from hatdfed.runs.records.folder import environment
from hatdfed_bench.coordinator_cost import round_costs

FLEETS = (5, 50, 200, 1000, 2000)
SPREADS = {"close": 0.3, "far apart": 3.0}  # standard deviation of the log-weights at the start


def fastest(work: Callable[[], object], repeats: int = 7) -> float:
    """Milliseconds of the fastest of a few repeats: a yardstick for the machine of the moment."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(1e3 * (time.perf_counter() - start))
    return min(times)


def measure(num_servers: int, spread: float) -> dict[str, float]:
    """A row of the table."""
    costs = round_costs(num_servers, spread=spread)
    totals = [plan + learn for plan, learn in costs]
    values = np.random.default_rng(0).normal(size=num_servers * (num_servers - 1))
    return {
        "plan_ms": statistics.median(plan for plan, _ in costs),
        "learn_ms": statistics.median(learn for _, learn in costs),
        "total_ms": statistics.median(totals),
        "fastest_ms": min(totals),
        "copy_ms": fastest(values.copy),
        "sort_ms": fastest(lambda: np.sort(values)),
    }


def main() -> None:
    """Measure all fleets, print a line for each, keep them."""
    rows = []
    for num_servers in FLEETS:
        for name, spread in SPREADS.items():
            row = {"servers": num_servers, "weights": name, **measure(num_servers, spread)}
            rows.append(row)
            print(
                "  ".join(
                    f"{key} {value:.2f}" if isinstance(value, float) else f"{value}" for key, value in row.items()
                )
            )
    path = Path(__file__).with_name("results") / "coordinator.json"
    path.write_text(json.dumps({"machine": environment(), "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
