"""Simulated time to accuracy with unequal machines: synchronous rounds, rounds with a deadline, asynchronous rounds.

OMP_NUM_THREADS=1 python benchmarks/time_to_accuracy.py             prints, writes results/time-to-accuracy-digits.json
OMP_NUM_THREADS=1 python benchmarks/time_to_accuracy.py --quick     one seed, prints only

Exploratory, on validation data of digits. About half of the servers take ten times as long for a sample as the others.
All runs of a seed last as long in simulated time as the synchronous run of their method. Intervals are 95 % intervals
of the mean over seeds; differences to synchronous rounds are paired by seed.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hatdfed.core.timing.own_pace import OwnPace
from hatdfed.data.datasets import load_dataset
from hatdfed.runs.play import Job
from hatdfed.runs.play import play as play_jobs
from hatdfed.runs.records.folder import environment
from hatdfed.runs.result import RunResult
from hatdfed.runs.statistics import joules_to_reach, paired_difference, paired_or_none, seconds_to_reach
from hatdfed.setup.build.placement import Placement
from hatdfed.setup.build.program import make_actors
from hatdfed.setup.config import Config
from hatdfed.setup.layers import resolve

SEEDS = (30, 31, 32, 33, 34)
ROUNDS = 50  # of the synchronous run
DEADLINE = 4.0  # seconds: the fast machines are in time, the slow ones are not
TARGETS = (50.0, 70.0, 90.0)
WORLD: dict[str, Any] = {"dataset": "digits", "servers": 8, "validation_images": 300}
MACHINES = {"weak_seconds_per_sample": 0.25, "strong_seconds_per_sample": 0.025}
MODES: dict[str, dict[str, Any]] = {
    "synchronous": {"asynchronous": False},
    "deadline": {"asynchronous": False, "deadline_seconds": DEADLINE},
    "asynchronous": {"asynchronous": True},
}
METHODS = {"hat-dfed-plus": tuple(MODES), "el-local": tuple(MODES), "ad-psgd": ("synchronous", "asynchronous")}


def make_config(method: str, mode: str, seed: int, rounds: int) -> Config:
    """One run."""
    time = {**MACHINES, **MODES[mode]}
    return resolve({**WORLD, "method": method, "seed": seed, "rounds": rounds, "time": time})


def count_rounds(method: str, mode: str, seed: int, seconds: float) -> int:
    """Rounds that last so long; of a deadline at least."""
    config = make_config(method, mode, seed, ROUNDS)
    if mode == "deadline":
        return math.ceil(seconds / DEADLINE)
    pace = make_actors(config, load_dataset("digits"))[0].pace
    assert isinstance(pace, OwnPace)
    return math.ceil(seconds / pace.tick)


def cut(result: RunResult, seconds: float) -> list[dict[str, Any]]:
    """The rounds of a run that begin within so many simulated seconds."""
    passed, kept = 0.0, []
    for row in result.rounds:
        if passed >= seconds:
            break
        kept.append(row)
        passed += row["simulated_seconds"]
    return kept


def play(method: str, seeds: Sequence[int]) -> dict[str, dict[int, list[dict[str, Any]]]]:
    """The rounds of every mode by seed, those of one seed all of the same simulated time."""
    waiting = play_together([make_config(method, "synchronous", seed, ROUNDS) for seed in seeds])
    seconds = {seed: waiting[seed].summary["simulated_seconds"] for seed in seeds}
    found = {"synchronous": {seed: list(waiting[seed].rounds) for seed in seeds}}
    for mode in METHODS[method][1:]:
        counts = {seed: count_rounds(method, mode, seed, seconds[seed]) for seed in seeds}
        results = play_together([make_config(method, mode, seed, counts[seed]) for seed in seeds])
        found[mode] = {seed: cut(results[seed], seconds[seed]) for seed in seeds}
    return found


def play_together(configs: Sequence[Config]) -> dict[int, RunResult]:
    """Runs of several seeds in one fleet."""
    results = play_jobs([Job(config) for config in configs], Placement("stacked", "cpu"))
    return {result.config.seed: result for result in results}


def describe(rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The figures of one run."""
    last = statistics.fmean(row["avg_accuracy"] for row in rounds[-5:])  # rounds differ in length, the last few little
    return {
        "rounds": len(rounds),
        "simulated_seconds": math.fsum(row["simulated_seconds"] for row in rounds),
        "joules": math.fsum(row[name] for row in rounds for name in row if name.endswith("_joules")),
        "last_validation_accuracy": last,
        "seconds_to": {f"{target:g}": seconds_to_reach(rounds, target) for target in TARGETS},
        "joules_to": {f"{target:g}": joules_to_reach(rounds, target) for target in TARGETS},
    }


def summarise(runs: Mapping[int, Mapping[str, Any]], waiting: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """Means with intervals over seeds, and paired differences to synchronous rounds."""
    summary: dict[str, Any] = {}
    to_targets = [(cost, f"{target:g}") for cost in ("seconds_to", "joules_to") for target in TARGETS]
    for cost, *target in [("last_validation_accuracy",), ("joules",), *to_targets]:
        name = "_".join([cost, *target])
        mine, theirs = (
            {seed: each[cost][target[0]] if target else each[cost] for seed, each in some.items()}
            for some in (runs, waiting)
        )
        mine, theirs = ({s: value for s, value in some.items() if value is not None} for some in (mine, theirs))
        mean = paired_difference(mine, dict.fromkeys(mine, 0.0)) if mine else None
        difference = paired_or_none(mine, theirs)
        summary[name] = None if mean is None else mean._asdict()
        summary[f"{name}_difference"] = None if difference is None else difference._asdict()
    return summary


def main() -> None:
    """Play, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one seed, nothing is written")
    quick = parser.parse_args().quick
    rows = []
    for method, modes in METHODS.items():
        played = play(method, SEEDS[:1] if quick else SEEDS)
        figures = {mode: {seed: describe(rounds) for seed, rounds in played[mode].items()} for mode in modes}
        for mode in modes:
            summary = summarise(figures[mode], figures["synchronous"])
            rows.append({"method": method, "mode": mode, **summary, "runs": figures[mode]})
            print(json.dumps({key: value for key, value in rows[-1].items() if key != "runs"}), flush=True)
    if not quick:
        place = Path(__file__).parent / "results/time-to-accuracy-digits.json"
        told = {"seeds": SEEDS, "world": WORLD, "machines": MACHINES, "deadline_seconds": DEADLINE, "rows": rows}
        content = {"environment": environment(), **told}
        place.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
