"""What a reading of the paper changes in one figure, paired over seeds: for tables, not for choosing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from hatdfed.runs.statistics import PairedDifference, paired_difference
from hatdfed_paper.plans import READINGS, Reading, point
from hatdfed_paper.results import Results

BySeed = Mapping[int, float]


class Worth(NamedTuple):
    """A reading against `hat-dfed` in the same worlds."""

    reading: Reading
    by_dataset: dict[str, PairedDifference]
    together: PairedDifference | None  # mean over data sets, seed by seed; None where one of them is missing
    seeds: dict[str, list[int]]  # that both have


def worth_of_readings(results: Results, datasets: Sequence[str], figure: str) -> list[Worth]:
    """Every reading that has been played; one whose runs lack the figure has no differences."""
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
        together = _together(list(known.values())) if len(known) == len(datasets) else None
        seeds = {name: sorted(mine.keys() & reference.keys()) for name, (mine, reference) in known.items()}
        found.append(Worth(reading, by_dataset, together, seeds))
    return found


def _together(pairs: Sequence[tuple[BySeed, BySeed]]) -> PairedDifference | None:
    seeds: set[int] = set.intersection(*(set(mine) & set(reference) for mine, reference in pairs))
    if not seeds:
        return None
    means = [{seed: sum(pair[side][seed] for pair in pairs) / len(pairs) for seed in seeds} for side in (0, 1)]
    return paired_difference(means[0], means[1])
