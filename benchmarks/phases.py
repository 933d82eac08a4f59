"""Where the time of a round of the stacked fleet goes on a CPU, phase by phase.

python benchmarks/phases.py [--servers 5] [--out FILE.json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch

from hatdfed.fleets.kernels import model
from hatdfed.fleets.kernels.round_steps import RoundSteps
from hatdfed.fleets.kernels.stages import CompiledStages
from hatdfed.fleets.stacked import fleet
from hatdfed.fleets.stacked.fleet import StackedFleet
from hatdfed.runs.process_memory import keep_freed_memory
from hatdfed.runs.records.folder import environment
from hatdfed_bench.measure import one_turn
from hatdfed_bench.workload import W

WARM_UP, TURNS = 2, 9
PHASES = {
    "draw the data": (StackedFleet, "plan_work"),
    "train": (StackedFleet, "train"),
    "of it: stages forward": (CompiledStages, "train"),
    "of it: network forward": (model.StackedNetwork, "train_logits"),
    "of it: Adam": (RoundSteps, "take"),
    "judge on probes": (fleet, "evaluate_on_probes"),
    "merge": (StackedFleet, "_merge"),
    "evaluate": (StackedFleet, "measure"),
    "keep the models before training": (fleet, "copy_rows"),
    "check norms": (fleet, "compute_norms"),
    "consensus distance": (StackedFleet, "consensus_distance"),
}


def clocked(owner: Any, name: str, seconds: dict[str, float], phase: str) -> None:
    """Replace a function by one that adds its time to `seconds`."""
    function = getattr(owner, name)

    def timed(*arguments: Any, **named: Any) -> Any:
        start = time.perf_counter()
        result = function(*arguments, **named)
        seconds[phase] += time.perf_counter() - start
        return result

    setattr(owner, name, timed)


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--servers", type=int, default=5)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    keep_freed_memory()
    seconds: dict[str, float] = defaultdict(float)
    for phase, (owner, name) in PHASES.items():
        clocked(owner, name, seconds, phase)
    turn = one_turn(W, arguments.servers, torch.device("cpu"), 1)
    rounds = []
    for _ in range(WARM_UP + TURNS):
        seconds.clear()
        start = time.perf_counter()
        turn()
        rounds.append({"whole round": time.perf_counter() - start, **seconds})
    medians = {phase: statistics.median(row[phase] for row in rounds[WARM_UP:]) for phase in ("whole round", *PHASES)}
    rows = {phase: 1e3 * value / arguments.servers for phase, value in medians.items()}
    for phase, milliseconds in rows.items():
        print(f"{milliseconds:7.2f} ms a server  {phase}")
    if arguments.out is not None:
        document = {"machine": environment(), "servers": arguments.servers, "milliseconds_a_server": rows}
        arguments.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
