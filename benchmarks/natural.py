"""Methods on the four data sets with a natural split: by carrier, president, typeface and speaker.

    OMP_NUM_THREADS=1 python benchmarks/natural.py [flights speeches typefaces vowels] [--seeds 0 1 2 …]
        prints tables, writes results/natural-cpu.json

Every run has the default settings of its data set, but for what `SMALLER` changes so that a CPU can do it. Figures are
of the test set after the last round. Seeds 0 to 9 are not those that the defaults were chosen with (docs/natural.md).
A run that is in the file already is not played again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hatdfed.runs.play import Job, play
from hatdfed.runs.records.folder import environment
from hatdfed.runs.result import RunResult
from hatdfed.setup.build.placement import Placement
from hatdfed.setup.layers import resolve

TARGET = Path(__file__).parent / "results" / "natural-cpu.json"
METHODS = ("local", "full", "hat-dfed", "hat-dfed-plus", "rnd", "d-psgd", "sgp", "dac")
SMALLER: Mapping[str, Mapping[str, Any]] = {
    "vowels": {},
    "flights": {},
    "typefaces": {"dataset_options": {"side": 16}},
    "speeches": {"rounds": 15},
}
Row = dict[str, Any]


def main() -> None:
    """Play what is missing, a few seeds of one data set at a time, and keep everything after each."""
    options = _options()
    rows: list[Row] = json.loads(options.out.read_text())["rows"] if options.out.exists() else []
    for dataset in options.datasets:
        for seeds in _parts(options.seeds, options.together):
            have = {(row["dataset"], row["method"], row["seed"]) for row in rows}
            todo = [(method, seed) for method in METHODS for seed in seeds if (dataset, method, seed) not in have]
            if todo:
                rows += _play(dataset, todo)
                content = {"machine": environment(), "settings": SMALLER, "rows": rows}
                options.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        _print_dataset(dataset, rows)


def _play(dataset: str, todo: Sequence[tuple[str, int]]) -> list[Row]:
    settings = {"dataset": dataset, "checkpoint_every": 0, **SMALLER[dataset]}
    jobs = [Job(resolve({**settings, "method": method, "seed": seed})) for method, seed in todo]
    start = time.perf_counter()
    results = play(jobs, Placement())
    seconds = (time.perf_counter() - start) / len(jobs)
    return [_figures(job, result, seconds) for job, result in zip(jobs, results, strict=True)]


def _figures(job: Job, result: RunResult, seconds: float) -> Row:
    """What is known of a run; accuracies are in percent, `seconds` a share of those of all runs played together."""
    summary, config = result.summary, job.config
    return {
        "dataset": config.dataset,
        "method": config.method,
        "seed": config.seed,
        "servers": config.servers,
        "rounds": config.rounds,
        "network": config.network,
        "accuracy": summary["avg_accuracy"],
        "worst": summary["worst_accuracy"],
        "metrics": summary["metrics"],
        "worst_metrics": {
            name: (min if name == "r2" else max)(values) for name, values in summary["metrics_by_server"].items()
        },
        "link_joules": 1e6 * summary["link_energy_mj"],
        "total_joules": 1e6 * summary["total_energy_mj"],
        "seconds": round(seconds, 2),
    }


def _parts(seeds: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    yield from (seeds[begin : begin + size] for begin in range(0, len(seeds), size))


def _print_dataset(dataset: str, rows: Sequence[Row]) -> None:
    print(dataset)
    for method in METHODS:
        found = [row for row in rows if (row["dataset"], row["method"]) == (dataset, method)]
        if found:
            means = [statistics.fmean(row[name] for row in found) for name in ("accuracy", "worst", "link_joules")]
            print("    {:14} {:5.1f} %  worst {:5.1f} %  {:9.0f} J".format(method, *means), end="")
            print(
                "".join(
                    f"  {name} {statistics.fmean(row['metrics'][name] for row in found):.3g}"
                    for name in found[0]["metrics"]
                ),
                flush=True,
            )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("datasets", nargs="*", default=list(SMALLER), metavar="DATASET")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(10)))
    parser.add_argument("--together", type=int, default=2, help="seeds of all methods in one stack")
    parser.add_argument("--out", type=Path, default=TARGET)
    return parser.parse_args()


if __name__ == "__main__":
    main()
