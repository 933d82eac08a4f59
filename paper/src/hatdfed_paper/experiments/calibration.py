"""D4: how much local work brings d-psgd to its published accuracy.

The choice looks at validation accuracy, and at nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple

from hatdfed.setup.layers import resolve
from hatdfed_paper.claims import Claims
from hatdfed_paper.experiment import BEHIND, Experiment, Table
from hatdfed_paper.markdown import table
from hatdfed_paper.plan import Scale, Settings, point, setting_name, settings_of_table_1
from hatdfed_paper.results import Results
from hatdfed_paper.rows import Row

PASSES = (1, 2, 4, 8)  # over a round's data, to choose from
MANY_SAMPLES = 240  # a round, the variant


class Calibrated(NamedTuple):
    """How far d-psgd is from its published accuracy with so many passes."""

    passes: int
    samples: int | None  # a round; None: the data set's own number
    accuracy: dict[str, float]  # validation accuracy, mean over seeds, by setting
    distance: float  # points, mean over settings of |ours − published|
    seeds: list[int]


def _points(dataset: str, scale: Scale) -> Iterator[Settings]:
    for setting, passes in product(settings_of_table_1(), PASSES):
        yield point(dataset, "d-psgd", **setting, local_passes=passes)
    for setting, passes in product(settings_of_table_1(), PASSES[:3]):
        yield point(dataset, "d-psgd", **setting, local_passes=passes, samples_per_round=MANY_SAMPLES)


def calibrate(results: Results, claims: Claims, dataset: str) -> list[Calibrated]:
    """The curve over passes, and over samples where there are more; of settings that are all there."""
    found = []
    for samples in (None, MANY_SAMPLES):
        for passes in PASSES:
            work = {"local_passes": passes} | ({} if samples is None else {"samples_per_round": samples})
            accuracy: dict[str, float] = {}
            distances, seeds = [], set[int]()
            for setting in settings_of_table_1():
                seen = results.figures(point(dataset, "d-psgd", **setting, **work), "validation_accuracy")
                published = claims.row("table_1", point(dataset, "d-psgd", **setting))
                if seen and published:
                    accuracy[setting_name(setting)] = mean = sum(seen.values()) / len(seen)
                    distances.append(abs(mean - published["avg_accuracy"][0]))
                    seeds |= seen.keys()
            if len(distances) == len(settings_of_table_1()):
                distance = sum(distances) / len(distances)
                found.append(Calibrated(passes, samples, accuracy, distance, sorted(seeds)))
    return found


def choose_passes(curve: Sequence[Calibrated]) -> int | None:
    """D4: of the curve at the paper's samples a round, the passes nearest to the published averages."""
    own = [each for each in curve if each.samples is None]
    return min(own, key=lambda each: each.distance).passes if own else None


def _rows(results: Results, claims: Claims, scale: Scale) -> list[Row]:
    """Validation accuracy of d-psgd for each setting, and how far it is from the published one."""
    return [
        {
            "dataset": dataset,
            "samples_per_round": each.samples or resolve({"dataset": dataset}).samples_per_round,
            "local_passes": each.passes,
            "validation_accuracy": {name: round(value, 4) for name, value in each.accuracy.items()},
            "mean_distance_points": round(each.distance, 4),
            "seeds": each.seeds,
        }
        for dataset in scale.datasets
        for each in calibrate(results, claims, dataset)
    ]


def _markdown(rows: Sequence[Row]) -> str:
    settings = list(rows[0]["validation_accuracy"]) if rows else []
    headings = ["data set", "samples per round", "passes", *settings, "mean distance to published"]
    cells = [
        [row["dataset"], str(row["samples_per_round"]), str(row["local_passes"])]
        + [f"{row['validation_accuracy'][setting]:.1f}" for setting in settings]
        + [f"{row['mean_distance_points']:.2f}"]
        for row in rows
    ]
    return table(headings, cells)


EXPERIMENT = Experiment(
    "calibration",
    "D4: how much local work brings d-psgd to its published accuracy",
    _points,
    BEHIND,
    seeds=5,
    tables=(Table("calibration", _rows, _markdown),),
)
