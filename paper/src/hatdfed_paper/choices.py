"""Two choices that runs make, by rules written down: how much local work (D4), and how `hat-dfed` reads the paper.

Both look at validation accuracy, and at nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hatdfed_paper.claims import Claims
from hatdfed_paper.plans import MANY_SAMPLES, PASSES, Reading, point, settings_of_table_1
from hatdfed_paper.results import Results
from hatdfed_paper.worth import Worth, worth_of_readings

CHOSEN_BY_DATA = ("D7", "D12", "D16", "D17")  # the others stay as printed, or as the world demands
_STEERS = "validation_accuracy"


class Calibrated(NamedTuple):
    """How far d-psgd is from its published accuracy with so many passes."""

    passes: int
    samples: int | None  # a round; None: the data set's own number
    accuracy: dict[str, float]  # validation accuracy, mean over seeds, by setting
    distance: float  # points, mean over settings of |ours − published|
    seeds: list[int]


def calibration(results: Results, claims: Claims, dataset: str) -> list[Calibrated]:
    """The curve over passes, and over samples where there are more; of settings that are all there."""
    found = []
    for samples in (None, MANY_SAMPLES):
        for passes in PASSES:
            work = {"local_passes": passes} | ({} if samples is None else {"samples_per_round": samples})
            accuracy: dict[str, float] = {}
            distances, seeds = [], set[int]()
            for setting in settings_of_table_1():
                seen = results.figures(point(dataset, "d-psgd", **setting, **work), _STEERS)
                published = claims.row("table_1", point(dataset, "d-psgd", **setting))
                if seen and published:
                    accuracy[setting_name(setting)] = mean = sum(seen.values()) / len(seen)
                    distances.append(abs(mean - published["avg_accuracy"][0]))
                    seeds |= seen.keys()
            if len(distances) == len(settings_of_table_1()):
                distance = sum(distances) / len(distances)
                found.append(Calibrated(passes, samples, accuracy, distance, sorted(seeds)))
    return found


def chosen_passes(curve: Sequence[Calibrated]) -> int | None:
    """D4: of the curve at the paper's samples a round, the passes nearest to the published averages."""
    own = [each for each in curve if each.samples is None]
    return min(own, key=lambda each: each.distance).passes if own else None


def chosen_readings(results: Results, datasets: Sequence[str]) -> dict[str, Reading]:
    """What validation data prefer: readings whose interval over both data sets lies above 0, of several the best."""
    chosen: dict[str, Worth] = {}
    for each in worth_of_readings(results, datasets, _STEERS):
        number, gain = each.reading.number, each.together
        if number not in CHOSEN_BY_DATA or gain is None or gain.low is None or gain.low <= 0:
            continue
        best = chosen.get(number)
        if best is None or best.together is None or gain.mean > best.together.mean:
            chosen[number] = each
    return {number: each.reading for number, each in chosen.items()}


def setting_name(setting: dict[str, float]) -> str:
    """λ and ρ, for the eye."""
    return f"λ {setting['label_concentration']:g}, ρ {setting['device_online_probability']:g}"
