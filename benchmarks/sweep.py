"""A sweep of 40 runs on digits: played by `hatdfed.sweep` on all cores, against one run after another.

python benchmarks/sweep.py [--turns 3] [--jobs 2] [--out benchmarks/results/sweep.json]     wants a quiet machine

Both are played in turn in one process run, with all files that belong to a run. "One after another" is a loop over
`hatdfed.run` in this process, so it pays for starting Python once; the sweep pays for its worker processes each time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hatdfed
from hatdfed.runs.records.folder import environment
from hatdfed.sweeps.file import read_sweep
from hatdfed.sweeps.points import all_runs, points
from hatdfed.sweeps.table import figures_of, table

FILE = Path(__file__).parents[1] / "examples" / "sweeps" / "digits-40.yaml"


def one_after_another(folder: Path) -> list[dict[str, Any]]:
    """Every run alone."""
    found = points(read_sweep(FILE))
    results = {run.name: hatdfed.run(run.config, out=folder / run.name) for run in all_runs(found)}
    return table(found, {name: figures_of(result.summary, result.rounds) for name, result in results.items()})


def as_a_sweep(folder: Path, jobs: int) -> list[dict[str, Any]]:
    """In batches, in so many processes."""
    return hatdfed.sweep(FILE, out=folder / "sweep", jobs=jobs).rows


def timed(play: Callable[[Path], list[dict[str, Any]]]) -> tuple[float, list[dict[str, Any]]]:
    """Seconds, and the table that came of it."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        rows = play(Path(folder))
        return time.perf_counter() - start, rows


def main() -> None:
    """Play in turns, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    ways: dict[str, Callable[[Path], list[dict[str, Any]]]] = {
        "one after another": one_after_another,
        "one process, in batches": lambda folder: as_a_sweep(folder, 1),
        f"{arguments.jobs} processes, in batches": lambda folder: as_a_sweep(folder, arguments.jobs),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    tables = []
    for turn in range(arguments.turns):
        for name, play in ways.items():
            took, rows = timed(play)
            seconds[name].append(round(took, 2))
            tables.append(rows)
            print(f"turn {turn + 1}, {name}: {took:.1f} s", flush=True)
    assert all(rows == tables[0] for rows in tables), "the ways disagree"
    alone, *others = ways
    faster = {
        name: statistics.median(a / b for a, b in zip(seconds[alone], seconds[name], strict=True)) for name in others
    }
    for name, times in faster.items():
        print(f"{name}: {times:.2f} times as fast as one after another")
    if arguments.out is not None:
        row = {"machine": environment(), "file": FILE.name, "runs": 40, "seconds": seconds, "times_as_fast": faster}
        arguments.out.write_text(json.dumps(row, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
