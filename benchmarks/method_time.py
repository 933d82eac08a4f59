"""What a round of one method takes against a round of another in the stacked fleet: two runs, round by round in turn.

    OMP_NUM_THREADS=1 python benchmarks/method_time.py [--methods hat-dfed-plus-0.1 hat-dfed-trust] [--data FOLDER]
        prints the ratio, writes results/method-time-cpu.json

Both runs are in one process and share data, prices and initial models. On one thread rounds are timed by the processor
time of the process, so that other work on the machine counts little.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

import numpy as np
import torch

from hatdfed.core.coordinator import Coordinator
from hatdfed.core.fleet import Fleet
from hatdfed.data.datasets import Dataset, load_dataset
from hatdfed.runs.process_memory import keep_freed_memory
from hatdfed.runs.records.folder import environment
from hatdfed.setup.build.placement import Placement
from hatdfed.setup.build.simulation import make_batch
from hatdfed.setup.layers import resolve
from hatdfed_bench.machine import timed

RESULTS = Path(__file__).with_name("results") / "method-time-cpu.json"


class Run:
    """One run, of which every round is timed."""

    def __init__(self, coordinator: Coordinator, fleet: Fleet) -> None:
        self._coordinator, self._fleet = coordinator, fleet
        self._state = coordinator.start(np.zeros(fleet.num_servers))
        self.seconds: list[float] = []

    def play_round(self) -> None:
        """Plan, train, exchange, merge, measure, learn."""
        self.seconds.append(timed(self._play_round, torch.device("cpu")))

    def _play_round(self) -> None:
        plan = self._coordinator.plan(self._state)
        self._state, _ = self._coordinator.learn(self._state, plan, self._fleet.run_round(plan))


def main() -> None:
    """Play both, print, keep."""
    options = _options()
    keep_freed_memory()
    dataset = load_dataset(options.dataset, data_dir=options.data)
    runs = {name: _make_run(name, dataset, options) for name in options.methods}
    for _ in range(options.rounds):
        for run in runs.values():
            run.play_round()
    seconds = {name: statistics.fmean(run.seconds) for name, run in runs.items()}
    first, second = seconds.values()
    for name, mean in seconds.items():
        print(f"{1e3 * mean:7.1f} ms a round  {name}")
    print(f"{second / first:.3f} times as long")
    content = {
        "machine": environment(),
        "threads": torch.get_num_threads(),
        "dataset": options.dataset,
        "servers": options.servers,
        "rounds": options.rounds,
        "seed": options.seed,
        "mean_seconds": seconds,
        "seconds": {name: run.seconds for name, run in runs.items()},
    }
    options.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _make_run(method: str, dataset: Dataset, options: argparse.Namespace) -> Run:
    settings = {"servers": options.servers, "rounds": options.rounds, "seed": options.seed, "label_concentration": 0.3}
    config = resolve({"method": method, "dataset": options.dataset, **settings})
    batch = make_batch([config], dataset, Placement("stacked", "cpu"), names=[method])
    return Run(batch.coordinators[0], batch.fleets.fleets[0])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs=2, default=["hat-dfed-plus-0.1", "hat-dfed-trust"], metavar="METHOD")
    parser.add_argument("--dataset", default="fashion-mnist")
    parser.add_argument("--data", type=Path, help="folder of the data set; the usual one if not given")
    parser.add_argument("--servers", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--out", type=Path, default=RESULTS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
