"""How much an edge grows in rounds with the CIFAR-10 network, against the edge that has joined and waits.

python benchmarks/edge_memory.py [--rounds 6]     prints a table, writes results/edge-memory-cpu.json

Every server sends to every other one. The last edge starts late: until then the others have joined and wait, and what
they take then is what their peak is held against.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from deployment import Processes, forget_peak, memory

from hatdfed.runs.records.folder import environment

IN_DEGREES = (1, 3)
MODEL_BYTES = 4 * 4_226_201
SETTLE_SECONDS = 3.0
REPEATS = 3


def settings(servers: int, rounds: int) -> dict[str, Any]:
    """The paper's CIFAR-10 work, on images that need no download."""
    images = {"side": 32, "channels": 3, "train": 2000, "validation": 1000, "test": 200}
    return {
        "method": "hat-dfed",
        "dataset": "synthetic",
        "dataset_options": images,
        "network": "paper-cnn",
        "servers": servers,
        "rounds": rounds,
        "link_share": 1.0,
        "device_online_probability": 1.0,
        "images_per_server": 400,
        "validation_images": 1000,
        "local_passes": 8,
        "deploy": {"beat_seconds": 1.0},
    }


def measure(in_degree: int, rounds: int) -> dict[str, Any]:
    """The growth of all edges but the last."""
    with tempfile.TemporaryDirectory() as folder, Processes(Path(folder), settings(in_degree + 1, rounds)) as running:
        watched = [running.start_edge() for _ in range(in_degree)]
        running.until(lambda status: sum(s["active"] for s in status["servers"]) == in_degree, 120)
        time.sleep(SETTLE_SECONDS)
        idle = [memory(edge.pid) for edge in watched]
        for edge in watched:
            forget_peak(edge.pid)
        running.start_edge()
        done = running.until(lambda status: status["round"] == rounds or status["state"] == "done", 600)
        after = [memory(edge.pid) for edge in watched]
        running.coordinator.wait(timeout=60)
    growth = [(now["VmHWM"] - before["VmRSS"]) / MODEL_BYTES for now, before in zip(after, idle, strict=True)]
    return {
        "in_degree": in_degree,
        "undelivered": done["undelivered"],
        "idle_mb": [round(each["VmRSS"] / 1e6, 1) for each in idle],
        "peak_mb": [round(each["VmHWM"] / 1e6, 1) for each in after],
        "after_mb": [round(each["VmRSS"] / 1e6, 1) for each in after],
        "growth_models": [round(each, 2) for each in growth],
        "limit_models": in_degree + 4,
    }


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("results") / "edge-memory-cpu.json")
    arguments = parser.parse_args()
    rows = []
    for in_degree in sorted(REPEATS * IN_DEGREES):
        rows.append(measure(in_degree, arguments.rounds))
        print("  ".join(f"{name} {value}" for name, value in rows[-1].items()), flush=True)
    document = {"machine": environment(), "model_bytes": MODEL_BYTES, "rounds": arguments.rounds, "rows": rows}
    arguments.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
