"""What it costs to decide by wrong prices: methods that are told prices of links which are off by up to 2 or 4 times.

Every link's price is multiplied by a factor of its own, log-uniform between 1/f and f; training prices likewise, one
factor for each server. Methods decide by these prices, and the energy that is counted is that of the true ones. An
exploration: digits, five servers, a few seeds, accuracies of validation images.

python benchmarks/wrong_prices.py [--seeds 5] [--rounds 100] [--out FILE.json]
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from hatdfed.core.energy.energy_model import EnergyPrices, joules_by_cause
from hatdfed.core.loop import RunInPlay, run
from hatdfed.data.datasets import load_dataset
from hatdfed.data.datasets.base import Dataset
from hatdfed.randomness import stream
from hatdfed.runs.records.folder import environment
from hatdfed.setup.build.placement import Placement
from hatdfed.setup.build.simulation import make_batch
from hatdfed.setup.config import Config
from hatdfed.setup.layers import resolve

FIRST_SEED = 30
METHODS = ("hat-dfed", "hat-dfed-plus", "hat-dfed-trust", "cheapest", "rnd", "d-psgd")
FACTORS = (1.0, 2.0, 4.0)
RESULT = Path(__file__).parent / "results" / "wrong-prices-digits.json"


def mislead(prices: EnergyPrices, seed: int, factor: float) -> EnergyPrices:
    """The prices that a method is told; of factor 1 the true ones."""
    rng, spread = stream(seed, "wrong-prices"), math.log(factor)
    links = np.asarray(prices.link_joules_per_bit) * np.exp(rng.uniform(-spread, spread, (prices.num_servers,) * 2))
    compute = prices.compute_joules * np.exp(rng.uniform(-spread, spread, prices.num_servers))
    return dataclasses.replace(prices, link_joules_per_bit=links, compute_joules=compute)


def play(config: Config, dataset: Dataset, factor: float) -> dict[str, float]:
    """One run; its energy is what the fleet counts, which knows the true prices."""
    made = make_batch([config], dataset, Placement("stacked", "cpu"), ["run"])
    (coordinator,), (fleet,) = made.coordinators, made.fleets.fleets
    told = dataclasses.replace(coordinator, prices=mislead(coordinator.prices, config.seed, factor), limits=None)
    spent: list[float] = []
    accuracy: list[float] = []

    def note(_: Any, record: Any) -> None:
        spent.append(math.fsum(joules_by_cause(record.report.energy).values()))
        accuracy.append(100 * float(np.nanmean(record.report.accuracy)))

    run([RunInPlay(told, told.start(fleet.validation_accuracy()), config.rounds, [note])], made.fleets)
    made.fleets.close()
    return {"seed": config.seed, "validation_accuracy": accuracy[-1], "joules": math.fsum(spent)}


def main() -> None:
    """Play all methods with all factors and seeds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--out", type=Path, default=RESULT)
    arguments = parser.parse_args()
    dataset, rows = load_dataset("digits"), []
    for method in METHODS:
        for factor in FACTORS:
            seeds = range(FIRST_SEED, FIRST_SEED + arguments.seeds)
            settings = {"method": method, "dataset": "digits", "rounds": arguments.rounds}
            runs = [play(resolve({**settings, "seed": seed}), dataset, factor) for seed in seeds]
            rows.append({"method": method, "factor": factor, "runs": runs})
            means = [np.mean([each[key] for each in runs]) for key in ("validation_accuracy", "joules")]
            print(f"{method:16s} wrong by {factor:g}: {means[0]:.1f} %, {means[1] / 1e3:.2f} kJ", flush=True)
    content = {"rounds": arguments.rounds, "rows": rows, "machine": environment()}
    arguments.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
