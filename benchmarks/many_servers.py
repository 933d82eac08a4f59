"""Thousands of servers on one machine: what a round costs the coordinator, and what a whole run takes.

OMP_NUM_THREADS=1 python benchmarks/many_servers.py             prints figures, writes results/many_servers.json
OMP_NUM_THREADS=1 python benchmarks/many_servers.py --quick     the same with fewer rounds, prints only

The coordinator is measured alone, `plan` and `learn` together, with reports that are made up; candidates are swapped
within the rounds that count. Whole runs are processes of their own, so that each has its own peak of memory: softmax
regression on generated 8×8 images, 4 of them a round, as small as training can be; with a run folder, so that records
and checkpoints are paid for.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from hatdfed.runs.records.folder import environment
from hatdfed.setup.build.coordinator import make_coordinator, make_prices
from hatdfed.setup.config import Config
from hatdfed.setup.layers import resolve
from hatdfed_bench.coordinator_cost import costs_of

LINKS_OF_A_SERVER = 1.2  # as in the other benchmarks
ROUNDS = 31  # that are timed; candidates are swapped every tenth round
SIZES = (200, 1000, 2000, 5000, 10_000, 20_000)
MOST_WITH_ALL = {"hat-dfed": 2000, "hat-dfed-plus": 1000}  # beyond, one round takes minutes or many gigabytes
ALONE = [
    (method, servers, count)
    for method, most in MOST_WITH_ALL.items()
    for servers in SIZES
    for count in ((None,) if servers <= most else ()) + ((16, 32) if servers <= 5000 else (16,))
]
RUNS = [
    *((servers, count, 20) for servers in (200, 1000) for count in (None, 16)),
    (2000, None, 6),
    (2000, 16, 20),
    (5000, 16, 40),
]
PIXELS = 64


def settings(method: str, servers: int, candidates: int | None, rounds: int) -> dict[str, Any]:
    """As little training as can be."""
    return {
        "method": method,
        "dataset": "synthetic",
        "dataset_options": {"train": 5000, "validation": 200, "test": 200},
        "network": "linear",
        "servers": servers,
        "rounds": rounds,
        "candidates": candidates,
        "link_share": LINKS_OF_A_SERVER / (candidates or servers - 1),
        "devices": 2,
        "images_per_server": 20,
        "samples_per_round": 4,
        "device_online_probability": 0.9,
        "local_passes": 1,
        "probe_size": 4,
        "validation_images": 100,
    }


def alone(method: str, servers: int, candidates: int | None, rounds: int) -> dict[str, Any]:
    """The coordinator's milliseconds; those of rounds without links are not hidden behind those with."""
    config: Config = resolve(settings(method, servers, candidates, 200))
    coordinator = make_coordinator(config, make_prices(config, bits_per_sample=8 * PIXELS, num_params=10 * PIXELS + 10))
    start = time.perf_counter()
    state = coordinator.start(np.full(servers, 0.5))
    begun = 1e3 * (time.perf_counter() - start)
    costs = costs_of(coordinator, state, rounds)
    totals = [plan + learn for plan, learn in costs]
    with_links = [total for t, total in enumerate(totals) if (t + 3 + 1) % config.schedule.every == 0]
    return {
        "method": method,
        "servers": servers,
        "candidates": candidates,
        "start_ms": begun,
        "plan_ms": statistics.median(plan for plan, _ in costs),
        "learn_ms": statistics.median(learn for _, learn in costs),
        "median_ms": statistics.median(totals),
        "with_links_ms": statistics.median(with_links),
        "worst_ms": max(totals),
    }


def whole(method: str, servers: int, candidates: int | None, rounds: int) -> dict[str, Any]:
    """A run in a process of its own."""
    asked = json.dumps([method, servers, candidates, rounds])
    done = subprocess.run(  # noqa: S603 (ourselves)
        [sys.executable, __file__, "--run", asked], check=True, capture_output=True, text=True
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def run_here(method: str, servers: int, candidates: int | None, rounds: int) -> dict[str, Any]:
    """Seconds and memory of every round, the coordinator's part, and what is left on the disk."""
    from hatdfed.core.coordinator import Coordinator
    from hatdfed.runs.calls import run

    memory, seconds, clock = [], [], [time.perf_counter()]
    own: list[float] = []

    def timed(verb: Any) -> Any:
        def call(*arguments: Any) -> Any:
            start = time.perf_counter()
            result = verb(*arguments)
            own[-1:] = [own[-1] + 1e3 * (time.perf_counter() - start)] if own else []
            return result

        return call

    def on_round(config: Config, record: Any) -> None:
        now = time.perf_counter()
        seconds.append(now - clock[0])
        clock[0] = now
        memory.append(_resident_mb())
        own.append(0.0)

    Coordinator.plan, Coordinator.learn = timed(Coordinator.plan), timed(Coordinator.learn)  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "run"
        start = time.perf_counter()
        config = resolve(settings(method, servers, candidates, rounds))
        result = run(config, out=place, on_round=on_round, fleet="stacked", device="cpu")
        total = time.perf_counter() - start
        disk = {path.name: path.stat().st_size / 1e6 for path in place.iterdir() if path.is_file()}
        with (place / "checkpoint.safetensors").open("rb") as file:  # which begins with the length of its header
            disk["header of the checkpoint"] = int.from_bytes(file.read(8), "little") / 1e6
    half = len(memory) // 2
    return {
        "method": method,
        "servers": servers,
        "candidates": candidates,
        "rounds": rounds,
        "links": result.summary["links_per_round"],
        "accuracy": result.rounds[-1]["avg_accuracy"],
        "first_accuracy": result.rounds[0]["avg_accuracy"],
        "seconds": total,
        "seconds_a_round": statistics.median(seconds[1:]),
        "coordinator_ms": statistics.median(own[:-1]),
        "coordinator_worst_ms": max(own[:-1]),
        "memory_mb": [round(value, 1) for value in memory],
        "peak_memory_mb": _peak_mb(),
        "growth_mb": statistics.mean(memory[half:]) - statistics.mean(memory[1:half]),
        "disk_mb": disk,
    }


def _resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def _peak_mb() -> float:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith("VmHWM:"))


def _show(row: dict[str, Any], names: tuple[str, ...]) -> None:
    figures = "  ".join(f"{name} {row[name]:.4g}" for name in names)
    print(f"{row['method']}  {row['servers']} servers  candidates {row['candidates'] or 'all'}  {figures}", flush=True)


def main() -> None:
    """Measure everything, print a line for each, keep it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.run:
        print(json.dumps(run_here(*json.loads(asked.run))))
        return
    coordinator, runs = [], []
    for method, servers, count in ALONE:
        is_slow = method == "hat-dfed-plus" and count is None and servers > 200
        coordinator.append(alone(method, servers, count, 5 if asked.quick or is_slow else ROUNDS))
        _show(coordinator[-1], ("with_links_ms", "worst_ms"))
    for servers, count, rounds in RUNS:
        runs.append(whole("hat-dfed", servers, count, min(rounds, 4) if asked.quick else rounds))
        _show(runs[-1], ("seconds_a_round", "coordinator_ms", "coordinator_worst_ms", "peak_memory_mb"))
    if not asked.quick:
        report = {"machine": environment(), "coordinator": coordinator, "runs": runs}
        path = Path(__file__).with_name("results") / "many_servers.json"
        path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
