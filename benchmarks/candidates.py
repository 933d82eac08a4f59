"""What is given up when every server considers d others only: 200 servers, the same worlds, the same number of links.

OMP_NUM_THREADS=1 python benchmarks/candidates.py [--world digits] [--seeds 6]
    prints paired differences to the run without candidates, writes results/candidates-WORLD.json

A seed that is in the file already is not played again. Differences are over seeds, with Student's 95 % interval;
figures are of validation data after the last round, and of the test set beside them.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from hatdfed.runs.play import Job, play
from hatdfed.runs.records.folder import environment
from hatdfed.runs.result import RunResult
from hatdfed.runs.statistics import paired_difference
from hatdfed.setup.build.placement import Placement
from hatdfed.setup.layers import resolve

SERVERS = 200
LINKS_OF_A_SERVER = 2  # drawn in a round by hat-dfed, on average
COUNTS = (None, 8, 16, 32)  # d; None: all others
EVEN = {"schedule": {"finish_rounds": 0}}  # a finish takes all links that are considered, which is not the same number
RECIPES: dict[str, dict[str, Any]] = {
    "hat-dfed": {"method": "hat-dfed"},
    "hat-dfed-plus": {"method": "hat-dfed-plus"},
    "hat-dfed-plus without its finish": {"method": "hat-dfed-plus", **EVEN},
}
WORLDS: dict[str, dict[str, Any]] = {
    "digits": {"dataset": "digits"},
    "digits-linear": {"dataset": "digits", "network": "linear"},  # softmax regression: far less chance in training
    "fashion-mnist-linear": {"dataset": "fashion-mnist", "network": "linear", "rounds": 60, "images_per_server": 200},
}
FIGURES = ("validation_accuracy", "validation_worst", "avg_accuracy", "worst_accuracy", "link_joules", "links")


def settings(recipe: str, candidates: int | None, seed: int, world: str) -> dict[str, Any]:
    """One run."""
    considered = candidates or SERVERS - 1
    common = {"servers": SERVERS, "seed": seed, "checkpoint_every": 0, "candidates": candidates}
    return {**common, "link_share": LINKS_OF_A_SERVER / considered, **WORLDS[world], **RECIPES[recipe]}


def figures(result: RunResult) -> dict[str, float]:
    """What is compared."""
    last = result.rounds[-1]
    return {
        "validation_accuracy": last["avg_accuracy"],
        "validation_worst": last["worst_accuracy"],
        "avg_accuracy": result.summary["avg_accuracy"],
        "worst_accuracy": result.summary["worst_accuracy"],
        "link_joules": 1e6 * result.summary["link_energy_mj"],
        "links": result.summary["links_per_round"],
    }


def played(seed: int, world: str, data_dir: Path | None) -> list[dict[str, Any]]:
    """All runs of one world, side by side."""
    cases = [(recipe, count) for recipe in RECIPES for count in COUNTS]
    jobs = [Job(resolve(settings(recipe, count, seed, world))) for recipe, count in cases]
    results = play(jobs, Placement("stacked", "cpu"), data_dir=data_dir)
    return [
        {"recipe": recipe, "candidates": count, "seed": seed, **figures(result)}
        for (recipe, count), result in zip(cases, results, strict=True)
    ]


def differences(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of every d to all others, over the seeds that both have."""
    found = []
    for recipe in RECIPES:
        for count in COUNTS:
            mine = {run["seed"]: run for run in runs if (run["recipe"], run["candidates"]) == (recipe, count)}
            plain = {run["seed"]: run for run in runs if (run["recipe"], run["candidates"]) == (recipe, None)}
            row: dict[str, Any] = {"recipe": recipe, "candidates": count, "seeds": len(mine)}
            for name in FIGURES:
                row[name] = sum(run[name] for run in mine.values()) / len(mine)
                if count is not None:
                    values = ({seed: run[name] for seed, run in those.items()} for those in (mine, plain))
                    row[f"{name}_difference"] = paired_difference(*values)._asdict()
            found.append(row)
    return found


def main() -> None:
    """Play what is missing, seed by seed, and keep it after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--world", choices=tuple(WORLDS), default="digits")
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--data-dir", type=Path)
    asked = parser.parse_args()
    path = Path(__file__).with_name("results") / f"candidates-{asked.world}.json"
    runs = json.loads(path.read_text(encoding="utf-8"))["runs"] if path.exists() else []
    for seed in sorted(set(range(asked.seeds)) - {run["seed"] for run in runs}):
        runs += played(seed, asked.world, asked.data_dir)
        report = {"machine": environment(), "servers": SERVERS, "rows": differences(runs), "runs": runs}
        path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    for row in differences(runs):
        change = row.get("validation_accuracy_difference")
        points = (
            ""
            if change is None or change["low"] is None
            else f"{change['mean']:+.2f} ({change['low']:+.2f} to {change['high']:+.2f})"
        )
        print(f"{row['recipe']:34} d {row['candidates'] or 'all':>4}  {row['validation_accuracy']:6.2f} %  {points}")


if __name__ == "__main__":
    main()
