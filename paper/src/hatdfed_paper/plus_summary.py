"""What `hat-dfed-plus` reaches, in a few figures for each data set and fleet: the settings of a table, taken together.

Differences are paired over seeds: a seed's figure is the mean over the settings that there are, and intervals are over
seeds. *The best* rival is the one with the highest mean over seeds in a setting, picked after the fact, which is in its
favour. A setting counts only where all of the four baselines have been played.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from hatdfed.runs.statistics import PairedDifference, paired_difference
from hatdfed.runs.summary import mean_and_deviation
from hatdfed_paper.equal_footing import equal_footing, without_thrift
from hatdfed_paper.plans import BASELINES, Scale, Settings, point, settings_of_table_1
from hatdfed_paper.plus_figure_data import AS_IT_IS, DENSE, EQUAL
from hatdfed_paper.plus_plans import PLUS
from hatdfed_paper.results import Results
from hatdfed_paper.rows import Row, interval

BySeed = dict[int, float]


class Contest(NamedTuple):
    """hat-dfed-plus and the four baselines in one place."""

    setting: str
    plus: Settings
    rivals: Mapping[str, Settings]


def plus_summary(results: Results, scale: Scale) -> list[Row]:
    """A row for each data set and number of servers that has been played."""
    rows = []
    for dataset in scale.datasets:
        for servers in dict.fromkeys((5, *scale.servers[2:])):
            as_is, equal, dense = (_contests(results, dataset, servers, way) for way in (AS_IT_IS, EQUAL, DENSE))
            if as_is:
                row = {"dataset": dataset, "servers": servers, **_as_it_is(results, as_is)}
                rows.append(row | {"equal_footing": _equal(results, equal), "dense": _dense(results, dense)})
    return rows


def _as_it_is(results: Results, contests: Sequence[Contest]) -> Row:
    """Against the baselines as they are."""
    ahead = [_against_mean(results, each, "avg_accuracy") for each in contests]
    saved = {
        name: [_against_mean(results, each, name) for each in contests]
        for name in ("total_energy_mj", "link_energy_mj")
    }
    best = [_against_best(results, each) for each in contests]
    return {
        "settings": len(contests),
        "seeds": sorted(_shared(ahead)),
        "avg_accuracy_points": _over_seeds([{s: mine - other for s, (mine, other) in each.items()} for each in ahead]),
        "total_energy_percent": _over_seeds([_percent(each) for each in saved["total_energy_mj"]]),
        "link_energy_percent": _over_seeds([_percent(each) for each in saved["link_energy_mj"]]),
        "as_accurate_as_the_best": sum(each.mean >= 0 for _, each in best),
        "worst_over_best": sum(_worst_is_over_best(results, each) for each in contests),
        "behind": [_named(each, best[k]) for k, each in enumerate(contests) if best[k][1].mean < 0],
    }


def _equal(results: Results, contests: Sequence[Contest]) -> Row | None:
    """Against the best on equal footing: not below it, unless the whole interval is."""
    if not contests:
        return None
    best = [_against_best(results, each) for each in contests]
    below = [_named(each, found) for each, found in zip(contests, best, strict=True) if _is_below(found[1])]
    ahead = [_against_mean(results, each, "avg_accuracy") for each in contests]
    mean = _over_seeds([{s: mine - other for s, (mine, other) in each.items()} for each in ahead])
    return {"settings": len(contests), "not_below": len(contests) - len(below), "below": below, "against_mean": mean}


def _dense(results: Results, contests: Sequence[Contest]) -> Row | None:
    """What is missing to the best of those that send whole models in every round."""
    if not contests:
        return None
    best = [_against_best(results, each) for each in contests]
    last = min(range(len(best)), key=lambda k: best[k][1].mean)
    names = [name for name, _ in best]
    each_seed = [
        _minus(results.figures(each.plus, "avg_accuracy"), results.figures(each.rivals[name], "avg_accuracy"))
        for each, name in zip(contests, names, strict=True)
    ]
    return {
        "settings": len(contests),
        "largest_gap": _named(contests[last], best[last]),
        "mean": _over_seeds(each_seed),
    }


def _contests(results: Results, dataset: str, servers: int, way: str) -> list[Contest]:
    """The settings in which hat-dfed-plus and all four have runs; of larger fleets only the first is planned."""
    found = []
    for setting in settings_of_table_1() if servers == 5 else settings_of_table_1()[:1]:
        where = {"servers": servers, **setting}
        plus = point(dataset, PLUS, **where)
        rivals = {name: point(dataset, name, **where, **_given(way, name, dataset, servers)) for name in BASELINES}
        if set(results.at(plus)).intersection(*(results.at(each) for each in rivals.values())):
            words = ", ".join(f"{letter} {value:g}" for letter, value in zip("λρ", setting.values(), strict=True))
            found.append(Contest(words, plus, rivals))
    return found


def _given(way: str, method: str, dataset: str, servers: int) -> Settings:
    """What a baseline is given."""
    if way == AS_IT_IS:
        return {}
    return equal_footing(method, dataset, servers) if way == EQUAL else without_thrift(dataset)


def _against_mean(results: Results, contest: Contest, figure: str) -> dict[int, tuple[float, float]]:
    """Its figure and the mean of the four, by seed."""
    mine = results.figures(contest.plus, figure)
    theirs = [results.figures(each, figure) for each in contest.rivals.values()]
    seeds = set(mine).intersection(*theirs)
    return {seed: (mine[seed], sum(each[seed] for each in theirs) / len(theirs)) for seed in seeds}


def _against_best(results: Results, contest: Contest) -> tuple[str, PairedDifference]:
    """The most accurate of the four, and what hat-dfed-plus has more than it, seed by seed."""
    found = {name: results.figures(each, "avg_accuracy") for name, each in contest.rivals.items()}
    best = max(found, key=lambda name: mean_and_deviation(list(found[name].values()))[0])
    return best, paired_difference(results.figures(contest.plus, "avg_accuracy"), found[best])


def _worst_is_over_best(results: Results, contest: Contest) -> bool:
    """Whether its worst server, in the mean over seeds, does as well as the best server of every baseline."""
    worst, _ = mean_and_deviation(list(results.figures(contest.plus, "worst_accuracy").values()))
    tops = [
        mean_and_deviation(list(results.figures(each, "best_accuracy").values()))[0] for each in contest.rivals.values()
    ]
    return worst >= max(tops)


def _named(contest: Contest, found: tuple[str, PairedDifference]) -> Row:
    return {"setting": contest.setting, "method": found[0], **interval(found[1])}


def _is_below(difference: PairedDifference) -> bool:
    return difference.mean < 0 if difference.high is None else difference.high < 0


def _percent(pairs: Mapping[int, tuple[float, float]]) -> BySeed:
    return {seed: 100 * (1 - mine / other) for seed, (mine, other) in pairs.items() if other}


def _minus(mine: BySeed, other: BySeed) -> BySeed:
    return {seed: mine[seed] - other[seed] for seed in mine.keys() & other.keys()}


def _over_seeds(settings: Sequence[Mapping[int, float]]) -> Row | None:
    """The mean over settings, seed by seed, with its interval; None where no seed has them all."""
    mean = {seed: sum(each[seed] for each in settings) / len(settings) for seed in _shared(settings)}
    return interval(paired_difference(mean, dict.fromkeys(mean, 0.0))) if mean else None


def _shared(settings: Sequence[Mapping[int, object]]) -> set[int]:
    return set.intersection(*(set(each) for each in settings)) if settings else set()
