"""What measuring accuracies in half precision changes: a run on a GPU, its models asked in TF32 and in bfloat16.

python benchmarks/half_precision.py [--data-dir DIR] [--out FILE.json]     needs a GPU and Fashion-MNIST
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

from hatdfed.core import loop
from hatdfed.data.datasets import load_dataset
from hatdfed.fleets.stacked.fleet import StackedFleet
from hatdfed.fleets.stacked.model import Samples
from hatdfed.fleets.stacked.rows import Rows
from hatdfed.runs.records.folder import environment
from hatdfed.setup.build.placement import Placement
from hatdfed.setup.build.simulation import make_batch
from hatdfed.setup.layers import resolve

SERVERS, ROUNDS, AT_ONCE = 20, 60, 1000


def compared(rows: Rows, images: Samples) -> dict[str, float]:
    """How far accuracies are apart, in points, and how many answers differ, in percent."""
    everyone = slice(0, rows.count)
    answers = {
        exact: torch.cat(
            [
                rows.evaluate(everyone, x[None], y[None], exact=exact)[0]
                for x, y in zip(torch.split(images.x, AT_ONCE), torch.split(images.y, AT_ONCE), strict=True)
            ],
            dim=1,
        ).double()
        for exact in (True, False)
    }
    points = 100 * (answers[True].mean(dim=1) - answers[False].mean(dim=1))
    return {
        "images": len(images.y),
        "largest_difference": float(points.abs().max()),
        "difference_of_the_mean": float(points.mean().abs()),
        "answers_that_differ": 100 * float((answers[True] != answers[False]).double().mean()),
    }


def main() -> None:
    """Play, compare, keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    dataset = load_dataset("fashion-mnist", data_dir=arguments.data_dir)
    config = resolve({"method": "hat-dfed", "dataset": "fashion-mnist", "servers": SERVERS, "rounds": ROUNDS})
    batch = make_batch([config], dataset, Placement("stacked", "cuda"), names=["half"])
    (coordinator,), fleets = batch.coordinators, batch.fleets
    assert isinstance(fleets, StackedFleet)
    start = coordinator.start(fleets.fleets[0].validation_accuracy())
    loop.run([loop.RunInPlay(coordinator, start, ROUNDS)], fleets)
    rows = fleets.rows
    result = {
        "machine": {"name": torch.cuda.get_device_name(), **environment()},
        "servers": SERVERS,
        "rounds": ROUNDS,
        "test": compared(rows, rows.model.samples(rows.members[0].test.data)),
        "validation": compared(rows, rows.validation.samples(rows.members[0].sources[0].validation)),
    }
    print(json.dumps({key: result[key] for key in ("test", "validation")}))
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
