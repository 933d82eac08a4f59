"""A method against its rivals, paired over seeds: points of accuracy gained and percent of energy saved.

A seed's figure is the mean over all places that are compared; intervals are over seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from hatdfed.runs.statistics import PairedDifference, paired_or_none
from hatdfed_paper.plan import Settings
from hatdfed_paper.results import Results

BySeed = Mapping[int, float]


class Contest(NamedTuple):
    """One method and its rivals, by name, in one place."""

    mine: Settings
    rivals: Mapping[str, Settings]


def points_gained(results: Results, contests: Sequence[Contest], figure: str) -> PairedDifference | None:
    """Points that the method has more than the mean of its rivals; None where no seed has all of them."""
    return _compare(results, contests, figure, lambda mine, rivals: mine - sum(rivals) / len(rivals))


def percent_saved(results: Results, contests: Sequence[Contest], figure: str) -> PairedDifference | None:
    """Percent of energy that the method saves against its rivals (`energy_saving`); None where no seed has all."""
    return _compare(results, contests, figure, energy_saving)


def energy_saving(mine: float, rivals: Sequence[float]) -> float | None:
    """Percent of energy saved, the mean over rivals of 1 − mine/rival; None where a rival spends nothing.

    This is how the paper averages: over settings and baselines, its Table 1 gives the 36.7 % of total and 46.3 % of
    link energy in its section on RQ1 by a mean of ratios, and neither by a ratio of means. A dear rival, such as `rnd`
    in a large fleet, does not outweigh the others.

    >>> energy_saving(1.0, [2.0, 100.0])
    74.5
    """
    return sum(100 * (1 - mine / rival) for rival in rivals) / len(rivals) if all(rivals) else None


def mean_over_seeds(places: Sequence[BySeed]) -> PairedDifference | None:
    """The mean over places, seed by seed, held against 0; None where no seed has them all."""
    mean = mean_of_places(places)
    return paired_or_none(mean, dict.fromkeys(mean, 0.0))


def mean_of_places(places: Sequence[BySeed]) -> dict[int, float]:
    """The mean over places of every seed that all of them have."""
    seeds = set.intersection(*(set(place) for place in places)) if places else set()
    return {seed: sum(place[seed] for place in places) / len(places) for seed in sorted(seeds)}


def shared_seeds(results: Results, contests: Sequence[Contest]) -> list[int]:
    """The seeds that a method and all its rivals have in every place."""
    played = [set(results.at(each)) for contest in contests for each in (contest.mine, *contest.rivals.values())]
    return sorted(set.intersection(*played)) if played else []


def _compare(
    results: Results,
    contests: Sequence[Contest],
    figure: str,
    compare: Callable[[float, Sequence[float]], float | None],
) -> PairedDifference | None:
    places = []
    for contest in contests:
        mine = results.figures(contest.mine, figure)
        rivals = [results.figures(each, figure) for each in contest.rivals.values()]
        seeds = set(mine).intersection(*rivals)
        found = {seed: compare(mine[seed], [rival[seed] for rival in rivals]) for seed in seeds}
        places.append({seed: value for seed, value in found.items() if value is not None})
    return mean_over_seeds(places)
