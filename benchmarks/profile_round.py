"""Where the time of one round goes on a GPU: kernels by their share, and how much of the wall clock they fill.

python benchmarks/profile_round.py [--workload fashion-mnist] [--servers 350] [--out FILE.json]
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from hatdfed.runs.records.folder import environment
from hatdfed_bench.measure import one_turn
from hatdfed_bench.workload import WORKLOADS

WARM_UP = 3


def measure(workload: str, servers: int, runs: int) -> dict[str, Any]:
    """One round of the stacked fleet, after a few that do not count."""
    device = torch.device("cuda")
    torch.set_float32_matmul_precision("high")
    turn = one_turn(WORKLOADS[workload], servers, device, runs)
    for _ in range(WARM_UP):
        turn()
    torch.cuda.synchronize()
    start = time.perf_counter()
    turn()
    torch.cuda.synchronize()
    wall = time.perf_counter() - start
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        turn()
        torch.cuda.synchronize()
    kernels = [
        {"kernel": event.key[:80], "milliseconds": event.self_device_time_total / 1e3, "calls": event.count}
        for event in profiler.key_averages()
        if event.self_device_time_total > 0
    ]
    kernels.sort(key=lambda row: -row["milliseconds"])
    busy = sum(row["milliseconds"] for row in kernels)
    return {
        "machine": {"name": torch.cuda.get_device_name(), **environment()},
        "workload": workload,
        "servers": servers,
        "runs": runs,
        "wall_milliseconds": 1e3 * wall,
        "gpu_milliseconds": busy,
        "kernels": kernels[:30],
    }


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workload", default="fashion-mnist", choices=WORKLOADS)
    parser.add_argument("--servers", type=int, default=350)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    result = measure(arguments.workload, arguments.servers, arguments.runs)
    print(f"wall {result['wall_milliseconds']:.1f} ms, GPU busy {result['gpu_milliseconds']:.1f} ms")
    for row in result["kernels"][:15]:
        print(f"{row['milliseconds']:8.2f} ms  {row['calls']:4d} ×  {row['kernel']}")
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
