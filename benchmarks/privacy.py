"""What privacy costs in accuracy: digits, several sizes of noise, three seeds.

python benchmarks/privacy.py [--out benchmarks/results/privacy.json]
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import hatdfed
from hatdfed.runs.records.folder import environment
from hatdfed.runs.summary import mean_and_deviation

# Few large batches: noise is drawn once a batch, however many images are in it.
SETTINGS: dict[str, Any] = {
    "dataset": "digits",
    "network": "linear",
    "learner": {"optimiser": "sgd", "learning_rate": 1.0},
    "rounds": 40,
    "local_passes": 1,
    "samples_per_round": 800,
    "batch_size": 800,
    "device_online_probability": 1.0,
}
METHODS = ("local", "hat-dfed", "full")
CLIP = 1.0
NOISES = (None, 0.0, 2.0, 4.0, 8.0, 16.0)  # None: no privacy, and no clipping
SEEDS = (0, 1, 2)


def measure(noise: float | None) -> dict[str, Any]:
    """Play all methods and seeds at one size of noise."""
    privacy = {} if noise is None else {"clip": CLIP, "noise": noise}
    row: dict[str, Any] = {"noise": noise, "epsilon": None, "accuracy": {}}
    for method in METHODS:
        runs = [
            hatdfed.run({**SETTINGS, "method": method, "seed": seed, "privacy": privacy}, fleet="mailbox")
            for seed in SEEDS
        ]
        row["accuracy"][method] = mean_and_deviation([run.summary["avg_accuracy"] for run in runs])
        if noise is not None:
            row["epsilon"] = runs[0].summary["privacy"]["epsilon"]
    return row


def main() -> None:
    """Measure and write down."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    began, rows = time.perf_counter(), []
    for noise in NOISES:
        rows.append(measure(noise))
        print(rows[-1], flush=True)
    result = {
        "settings": SETTINGS,
        "clip": CLIP,
        "seeds": len(SEEDS),
        "rows": rows,
        "seconds": round(time.perf_counter() - began, 1),
        "machine": environment(),
    }
    if options.out is not None:
        options.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
