"""What each other way to read the paper is worth, and which of them `hat-dfed` should take.

The choice looks at validation accuracy, and at nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from hatdfed.data.datasets import dataset_kind
from hatdfed.runs.statistics import PairedDifference, paired_difference, paired_or_none
from hatdfed_paper.claims import Claims
from hatdfed_paper.differences import BySeed, mean_of_places
from hatdfed_paper.experiment import BEHIND, Experiment, Table
from hatdfed_paper.experiments.calibration import MANY_SAMPLES, PASSES
from hatdfed_paper.markdown import NOTHING, format_difference, table
from hatdfed_paper.plan import Scale, Settings, point
from hatdfed_paper.results import Results
from hatdfed_paper.rows import Row, interval_or_none

CHOSEN_BY_DATA = ("D7", "D12", "D16", "D17")  # the others stay as printed, or as the world demands


@dataclass(frozen=True)
class Reading:
    """One other way to read the paper."""

    number: str
    words: str
    settings: Mapping[str, Any]


READINGS = (
    Reading("D3", "the bandit learns from the test set", {"feedback": "test"}),
    Reading("D4", "1 pass over a round's data, as printed", {"local_passes": 1}),
    *(Reading("D4", f"{passes} passes over a round's data", {"local_passes": passes}) for passes in PASSES[1:]),
    Reading("D4", "240 samples per round", {"samples_per_round": MANY_SAMPLES}),
    Reading("D7", "softmax, as printed", {"utility": {"normalisation": "softmax"}}),
    Reading("D7", "softmax of z-scores", {"utility": {"normalisation": "softmax-standardised"}}),
    Reading("D8", "accuracy gain as released", {"utility": {"gain": "released"}}),
    Reading("D8", "unit costs as released", {"utility": {"thrift": "released"}}),
    Reading("D8", "η = 0.01", {"policy": {"learning_rate": 0.01}}),
    Reading("D8", "P_0 = 0", {"first_gain_from": "zero"}),
    Reading("D8", "PyTorch's initialisation", {"learner": {"initialisation": "module"}}),
    Reading("D9", "divide by p after rounding", {"policy": {"propensity": "after-rounding"}}),
    Reading("D12", "clip what exceeds 1", {"policy": {"capping": "clip"}}),
    Reading("D15", "probe of 50", {"probe_size": 50}),
    Reading("D15", "probe of 50, topped up", {"probe_size": 50, "probe_top_up": True}),
    Reading("D16", "high loss first, as printed", {"aggregator": {"loss_order": "high-first"}}),
    Reading("D17", "B·RMS(loss), as printed", {"aggregator": {"loss_scale": "printed"}}),
    Reading("D17", "mean loss / √50, as released", {"aggregator": {"loss_scale": "released"}}),
    Reading("D17", "softmax of counts, as printed", {"aggregator": {"volume": "softmax-of-counts"}}),
    Reading("D18", "the receiver's count for all", {"aggregator": {"volume": "receiver-count"}}),
)  # fmt: skip


def _points(dataset: str, scale: Scale) -> Iterator[Settings]:
    yield point(dataset, "hat-dfed")
    for reading in READINGS:
        if reading.settings != {"local_passes": dataset_kind(dataset).defaults["local_passes"]}:  # that is the first
            yield point(dataset, "hat-dfed", **reading.settings)


class Worth(NamedTuple):
    """A reading against `hat-dfed` in the same worlds."""

    reading: Reading
    by_dataset: dict[str, PairedDifference]
    together: PairedDifference | None  # mean over data sets, seed by seed; None where one of them is missing
    seeds: dict[str, list[int]]  # that both have


def measure_readings(results: Results, datasets: Sequence[str], figure: str) -> list[Worth]:
    """What every reading that has been played changes; one whose runs lack the figure has no differences."""
    found = []
    for reading in READINGS:
        points = {name: point(name, "hat-dfed", **reading.settings) for name in datasets}
        if not any(results.at(each) for each in points.values()):
            continue
        pairs = {
            name: (results.figures(each, figure), results.figures(point(name, "hat-dfed"), figure))
            for name, each in points.items()
        }
        known = {name: pair for name, pair in pairs.items() if pair[0].keys() & pair[1].keys()}
        by_dataset = {name: paired_difference(*pair) for name, pair in known.items()}
        together = _difference_of_means(list(known.values())) if len(known) == len(datasets) else None
        seeds = {name: sorted(mine.keys() & reference.keys()) for name, (mine, reference) in known.items()}
        found.append(Worth(reading, by_dataset, together, seeds))
    return found


def _difference_of_means(pairs: Sequence[tuple[BySeed, BySeed]]) -> PairedDifference | None:
    mine, reference = (mean_of_places([pair[side] for pair in pairs]) for side in (0, 1))
    return paired_or_none(mine, reference)


def choose_readings(results: Results, datasets: Sequence[str]) -> dict[str, Reading]:
    """What validation data prefer: readings whose interval over both data sets lies above 0, of several the best."""
    chosen: dict[str, Worth] = {}
    for each in measure_readings(results, datasets, "validation_accuracy"):
        number, gain = each.reading.number, each.together
        if number not in CHOSEN_BY_DATA or gain is None or gain.low is None or gain.low <= 0:
            continue
        best = chosen.get(number)
        if best is None or best.together is None or gain.mean > best.together.mean:
            chosen[number] = each
    return {number: each.reading for number, each in chosen.items()}


def _rows(results: Results, claims: Claims, scale: Scale) -> list[Row]:
    """What every reading changes in validation and test accuracy and in energy, paired."""
    figures = ("validation_accuracy", "avg_accuracy", "total_energy_mj")
    rows = []
    for worth in zip(*(measure_readings(results, scale.datasets, figure) for figure in figures), strict=True):
        reading, tested = worth[0].reading, worth[1]
        for dataset, seeds in tested.seeds.items():
            row: Row = {"reading": reading.number, "words": reading.words, "dataset": dataset}
            for figure, each in zip(figures, worth, strict=True):
                # A run that learns from the test set has no validation accuracy.
                row[f"{figure}_difference"] = interval_or_none(each.by_dataset.get(dataset))
            rows.append({**row, "seeds": seeds})
    return rows


def _markdown(rows: Sequence[Row]) -> str:
    headings = ["", "reading", "data set", "validation points", "test points", "total energy", "seeds"]
    cells = []
    for row in rows:
        validated, tested = row["validation_accuracy_difference"], row["avg_accuracy_difference"]
        differences = [format_difference(validated, 1) if validated else NOTHING, format_difference(tested, 1)]
        energy = format_difference(row["total_energy_mj_difference"], 2) + " MJ"
        cells.append([row["reading"], row["words"], row["dataset"], *differences, energy, str(tested["pairs"])])
    return table(headings, cells)


EXPERIMENT = Experiment(
    "readings",
    "What each reading of the paper is worth",
    _points,
    BEHIND,
    tables=(Table("readings", _rows, _markdown),),
)
