"""Two choices that runs make, by rules written down before: how much local work (D4), and what `hat-dfed` reads.

Both look at validation accuracy alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hatdfed.paper.claims import Claims
from hatdfed.paper.plans import PASSES, READINGS, Reading, point, settings_of_table_1
from hatdfed.paper.results import Results
from hatdfed.statistics import PairedDifference, paired_difference

CHOSEN_BY_DATA = ("D7", "D12", "D16", "D17")  # the others stay as printed, or as the world demands


class Calibrated(NamedTuple):
    """How far d-psgd is from its published accuracy with so many passes."""

    passes: int
    samples: int | None  # a round; None: the data set's own number
    accuracy: list[float]  # validation accuracy, mean over seeds, for each setting
    distance: float  # points, mean over settings of |ours − published|
    seeds: list[int]


def calibration(results: Results, claims: Claims, dataset: str) -> list[Calibrated]:
    """The curve over passes, and over samples where there are more."""
    found = []
    for samples in (None, 240):
        for passes in PASSES:
            extra = {"local_passes": passes} | ({} if samples is None else {"samples_per_round": samples})
            accuracy, distances = [], []
            seeds: set[int] = set()
            for setting in settings_of_table_1():
                seen = results.figures(point(dataset, "d-psgd", **setting, **extra), "validation_accuracy")
                published = claims.row("table_1", point(dataset, "d-psgd", **setting))
                if seen and published:
                    seeds |= seen.keys()
                    accuracy.append(sum(seen.values()) / len(seen))
                    distances.append(abs(accuracy[-1] - published["avg_accuracy"][0]))
            if distances:
                distance = sum(distances) / len(distances)
                found.append(Calibrated(passes, samples, accuracy, distance, sorted(seeds)))
    return found


def chosen_passes(curve: Sequence[Calibrated]) -> int | None:
    """D4: of the curve at the paper's samples a round, the passes nearest to the published averages."""
    own = [each for each in curve if each.samples is None]
    return min(own, key=lambda each: each.distance).passes if own else None


class Worth(NamedTuple):
    """What a reading changes in validation accuracy, in points."""

    reading: Reading
    by_dataset: dict[str, PairedDifference]
    together: PairedDifference | None  # mean over data sets, seed by seed; None where one is missing
    seeds: dict[str, list[int]]  # that both have


def worth_of_readings(results: Results, datasets: Sequence[str], figure: str = "validation_accuracy") -> list[Worth]:
    """Every reading against `hat-dfed` in the same worlds."""
    found = []
    for reading in READINGS:
        pairs = {name: _pair(results, name, reading, figure) for name in datasets}
        known = {name: pair for name, pair in pairs.items() if pair is not None}
        if known:
            by_dataset = {name: paired_difference(*pair) for name, pair in known.items()}
            together = _together(list(known.values())) if len(known) == len(datasets) else None
            seeds = {name: sorted(mine.keys() & reference.keys()) for name, (mine, reference) in known.items()}
            found.append(Worth(reading, by_dataset, together, seeds))
    return found


def chosen_readings(worth: Sequence[Worth]) -> dict[str, Reading]:
    """What validation data prefer: readings whose interval over both data sets lies above 0, of several the best."""
    chosen: dict[str, Worth] = {}
    for each in worth:
        number, gain = each.reading.number, each.together
        if number not in CHOSEN_BY_DATA or gain is None or gain.low is None or gain.low <= 0:
            continue
        best = chosen.get(number)
        if best is None or best.together is None or gain.mean > best.together.mean:
            chosen[number] = each
    return {number: each.reading for number, each in chosen.items()}


_Pair = tuple[Mapping[int, float], Mapping[int, float]]


def _pair(results: Results, dataset: str, reading: Reading, figure: str) -> _Pair | None:
    mine = results.figures(point(dataset, "hat-dfed", **reading.settings), figure)
    reference = results.figures(point(dataset, "hat-dfed"), figure)
    return (mine, reference) if mine.keys() & reference.keys() else None


def _together(pairs: Sequence[_Pair]) -> PairedDifference:
    seeds: set[int] = set.intersection(*(set(mine) & set(reference) for mine, reference in pairs))
    sums: list[dict[int, float]] = [
        {seed: sum(pair[side][seed] for pair in pairs) / len(pairs) for seed in seeds} for side in (0, 1)
    ]
    return paired_difference(sums[0], sums[1])


def summary(results: Results, claims: Claims, datasets: Sequence[str]) -> dict[str, Any]:
    """Both choices, for the eye."""
    worth = worth_of_readings(results, datasets)
    return {
        "local_passes": {name: chosen_passes(calibration(results, claims, name)) for name in datasets},
        "readings": {number: reading.words for number, reading in chosen_readings(worth).items()},
    }
