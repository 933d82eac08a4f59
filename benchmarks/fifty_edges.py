"""Fifty edge processes and one coordinator on this machine, with certificates: is anything lost, and what does it cost?

python benchmarks/fifty_edges.py [--edges 50] [--rounds 20]     prints figures, writes results/fifty-edges-cpu.json

The network is as small as can be: it is the deployment that is measured, not the training.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from deployment import Processes, cpu_seconds, memory

from hatdfed.runs.records.folder import RunFolder, environment

START_SECONDS = 0.5  # between two edges: each imports torch, and there are few cores
AT_ONCE = 8  # edges that may be starting


def settings(edges: int, rounds: int) -> dict[str, Any]:
    """Softmax regression on the embedded digits."""
    deploy = {"round_seconds": 300.0, "beat_seconds": 5.0, "away_seconds": 60.0, "idle_seconds": 30.0}
    work = {"images_per_server": 100, "validation_images": 100, "local_passes": 1}
    return {
        "method": "hat-dfed",
        "dataset": "digits",
        "network": "linear",
        "servers": edges,
        "rounds": rounds,
        **work,
        "deploy": deploy,
    }


class Watcher:
    """What the coordinator said about itself, round by round."""

    def __init__(self, running: Processes) -> None:
        self._running = running
        self.own_ms: dict[int, float] = {}
        self.cpu: dict[int, float] = {}
        self.began: float | None = None
        self.peak_mb = 0.0

    def note(self, status: dict[str, Any]) -> None:
        """One look."""
        pid = self._running.coordinator.pid
        if status["state"] == "running" and self.began is None:
            self.began = time.monotonic()
        if self.began is not None:
            self.cpu.setdefault(status["round"], cpu_seconds(pid))
            if status["round"]:
                self.own_ms[status["round"]] = 1e3 * status["coordinator_seconds"]
        self.peak_mb = max(self.peak_mb, memory(pid)["VmHWM"] / 1e6)


def has_servers(count: int, status: dict[str, Any]) -> bool:
    """Whether so many have joined."""
    return len(status["servers"]) >= count


def measure(edges: int, rounds: int) -> dict[str, Any]:
    """One run from the first process to the results."""
    with tempfile.TemporaryDirectory() as name, Processes(Path(name), settings(edges, rounds)) as running:
        folder, start = Path(name), time.monotonic()
        for number in range(edges):
            running.start_edge()
            running.until(partial(has_servers, number - AT_ONCE), 300)
            time.sleep(START_SECONDS)
        watcher = Watcher(running)
        asyncio.run(running.watch(watcher.note, 0.3))
        ended = time.monotonic()
        codes = [edge.wait(timeout=60) for edge in running.edges]
        began = ended if watcher.began is None else watcher.began
        return {
            "edges": edges,
            "rounds": rounds,
            **records(folder / "run", edges, rounds),
            "exit_codes_not_zero": sum(code != 0 for code in (*codes, running.coordinator.returncode)),
            "start_seconds": round(began - start, 1),
            "round_seconds": round((ended - began) / rounds, 2),
            "own_ms": [round(watcher.own_ms[t], 1) for t in sorted(watcher.own_ms)],
            "own_mean_ms": round(sum(watcher.own_ms.values()) / max(1, len(watcher.own_ms)), 1),
            "cpu_ms_a_round": round(1e3 * (max(watcher.cpu.values()) - min(watcher.cpu.values())) / rounds, 1),
            "coordinator_peak_mb": round(watcher.peak_mb, 1),
        }


def records(folder: Path, edges: int, rounds: int) -> dict[str, Any]:
    """What the run folder says about losses."""
    database = RunFolder(folder).read()
    links, servers = database.records("links"), database.records("servers")
    return {
        "links": len(links),
        "links_lost": sum(not row["delivered"] for row in links),
        "reports": len(servers),
        "reports_lost": edges * rounds - len(servers),
    }


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--edges", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("results") / "fifty-edges-cpu.json")
    arguments = parser.parse_args()
    row = measure(arguments.edges, arguments.rounds)
    for name, value in row.items():
        print(f"{name:22} {value}")
    arguments.out.write_text(json.dumps({"machine": environment(), **row}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
