"""What `hat-dfed-plus` is made of is searched for on validation data: one part at a time is changed from a guess.

Three sweeps: every part from a first guess; again, from what the first sweep chose, those parts that may have come to
depend on each other; and with many servers. Each has worlds of its own, that no table uses.

The rule that chooses: every change of a guess meets it in the same worlds, data sets × settings × seeds. A part that is
there for accuracy is changed if a change is distinguishably more accurate; of several the best. A part that is there to
save joules takes the value with the fewest link joules among those that are at most `TOLERATED` points, and not
distinguishably, less accurate than the most accurate value. A value whose links cost more than `LINKS_AT_MOST` of what
those of the four baselines cost on average is not considered: 94 % less is asked for, and other worlds may be a little
dearer. The test set plays no part.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, NamedTuple

from hatdfed.runs.statistics import PairedDifference, paired_or_none
from hatdfed.setup.layers import merge_layers
from hatdfed_paper.claims import Claims
from hatdfed_paper.differences import mean_of_places
from hatdfed_paper.experiment import BEYOND, Experiment, Table
from hatdfed_paper.markdown import NOTHING, format_difference, table
from hatdfed_paper.plan import BASELINES, EASY, HARD, Scale, Settings, point
from hatdfed_paper.results import Results
from hatdfed_paper.rows import Row, interval_or_none

TOLERATED = 0.5  # points of validation accuracy
LINKS_AT_MOST = 0.055  # of the baselines' link joules
World = str

# The first guess: cheap links that leave nobody out, in every fourth round and in eight bits, a local loss that knows
# the server's label shares, and all links in the last rounds. Spelled out here, so that what was searched stays known
# when the method changes.
FIRST_GUESS: Mapping[str, Any] = {
    "policy": {"name": "balanced-links", "degree": 1, "thrift": 2.0, "learning_rate": 0.0},
    "aggregator": {"name": "uniform"},
    "loss": {"name": "label-prior"},
    "codec": "int8",
    "schedule": {"every": 4, "finish_rounds": 5},
}


@dataclass(frozen=True)
class Change:
    """One part of the recipe, otherwise."""

    part: str
    words: str
    settings: Mapping[str, Any]
    saves: bool = False  # whether it is there to save joules; else to be more accurate


# As many links as one for everybody are among five servers, but wherever they fall.
_WHEREVER = {"policy": {"name": "priced-links", "thrift": 2.0, "learning_rate": 0.0}, "link_share": 0.25}

CHANGES = (
    Change("loss", "plain cross-entropy", {"loss": {"name": "cross-entropy"}}),
    Change("loss", "half of the label prior", {"loss": {"strength": 0.5}}),
    *(Change("finish", f"{rounds} rounds with all links", {"schedule": {"finish_rounds": rounds}})
      for rounds in (0, 3, 10)),
    *(Change("every", f"links in every {name} round", {"schedule": {"every": m}}, saves=True)
      for m, name in ((1, "single"), (2, "second"), (3, "third"), (8, "eighth"), (16, "sixteenth"))),
    Change("codec", "float32", {"codec": "float32"}, saves=True),
    Change("codec", "float16", {"codec": "float16"}, saves=True),
    *(Change("thrift", f"price preference {thrift:g}", {"policy": {"thrift": thrift}}, saves=True)
      for thrift in (0.0, 4.0, 8.0)),
    Change("degree", "two models for everybody", {"policy": {"degree": 2}}),
    Change("balance", "as many links, wherever they fall", _WHEREVER),
    Change("learning", "a bandit learns from accuracy", {"policy": {"learning_rate": None}, "gain_share": 1.0}),
    Change("merge", "by samples", {"aggregator": {"name": "by-samples"}}),
    Change("merge", "by importance", {"aggregator": {"name": "importance"}}),
    *(Change("cool-down", f"steps become shorter over {words}", {"learner": {"cool_down": share}})
      for share, words in ((0.25, "the last quarter"), (0.5, "the second half"), (1.0, "the whole run"))),
    Change("start", "all servers start from the same model", {"common_init": True}),
)  # fmt: skip


# What the first sweep chose.
SECOND_GUESS: Mapping[str, Any] = merge_layers(FIRST_GUESS, {"policy": {"thrift": 8.0}, "learner": {"cool_down": 0.25}})

# When steps become shorter at the end, models need not be pulled together so hard, and more of the joules may go to the
# rounds before; in four bits for a number, they reach twice as far.
CHANGES_AGAIN = (
    Change("spending", "links in every third round", {"schedule": {"every": 3}}),
    Change("spending", "every third, 2 rounds with all", {"schedule": {"every": 3, "finish_rounds": 2}}),
    Change("spending", "every second, 1 round with all", {"schedule": {"every": 2, "finish_rounds": 1}}),
    Change("spending", "two models in every eighth", {"policy": {"degree": 2}, "schedule": {"every": 8}}),
    *(Change("spending", f"int4, links in every {name} round, {last} with all",
             {"codec": "int4", "schedule": {"every": m, "finish_rounds": last}})
      for m, name, last in ((4, "fourth", 5), (2, "second", 5), (2, "second", 2), (1, "single", 2), (1, "single", 1))),
    Change("cool-down", "steps become shorter over the last seventh", {"learner": {"cool_down": 0.15}}),
    Change("cool-down", "steps become shorter over two fifths", {"learner": {"cool_down": 0.4}}),
    Change("learning", "a bandit learns from accuracy", {"policy": {"learning_rate": None}, "gain_share": 1.0}),
)  # fmt: skip

# What the second sweep chose.
THIRD_GUESS: Mapping[str, Any] = merge_layers(SECOND_GUESS, {"codec": "int4", "schedule": {"every": 2}})

CHANGES_FOR_MANY = (
    Change("degree", "one more model for every doubling", {"policy": {"degree": None}}),
    Change("finish", "2 rounds with all links", {"schedule": {"finish_rounds": 2}}, saves=True),
    Change("degree", "one more for every doubling, 2 rounds with all",
           {"policy": {"degree": None}, "schedule": {"finish_rounds": 2}}),
)  # fmt: skip


@dataclass(frozen=True)
class Sweep:
    """A guess, changes of it, and where they meet."""

    guess: Mapping[str, Any]
    changes: tuple[Change, ...]
    places: tuple[Mapping[str, Any], ...] = (HARD, EASY)
    large_places: tuple[Mapping[str, Any], ...] = ()  # on top, but not with CIFAR-10, whose large fleets take very long

    def places_for(self, dataset: str) -> tuple[Mapping[str, Any], ...]:
        """Where its runs are played with this data set."""
        return self.places if dataset == "cifar-10" else (*self.places, *self.large_places)

    def settings(self) -> Iterator[dict[str, Any]]:
        """The guess, then every change of it, as settings on top of `hat-dfed`."""
        yield dict(self.guess)
        for change in self.changes:
            yield merge_layers(self.guess, change.settings)


SWEEPS: Mapping[str, Sweep] = {
    "plus_search": Sweep(FIRST_GUESS, CHANGES),
    "plus_search_again": Sweep(SECOND_GUESS, CHANGES_AGAIN),
    "plus_search_many": Sweep(THIRD_GUESS, CHANGES_FOR_MANY, ({"servers": 20},), ({"servers": 50},)),
}


def _points(name: str, dataset: str, scale: Scale) -> Iterator[Settings]:
    sweep = SWEEPS[name]
    for place, changed in product(sweep.places_for(dataset), sweep.settings()):
        yield point(dataset, "hat-dfed", **place, **changed)


class Tried(NamedTuple):
    """One value of a part."""

    change: Change | None  # None: as in the guess
    accuracy: Mapping[World, float]  # validation
    by_seed: Mapping[int, float]  # the same, mean over the places that share a seed
    link_mj: float  # mean


def measure_changes(results: Results, scale: Scale, sweep: Sweep) -> list[Tried]:
    """The guess, then every change that has been played."""
    found = [_measure_change(results, scale, sweep, change) for change in (None, *sweep.changes)]
    return [each for each in found if each.accuracy]


def allowed_link_mj(results: Results, scale: Scale, sweep: Sweep) -> float:
    """What links may cost on average over the places of a sweep; no limit while baselines are missing there."""
    places = [(dataset, place) for dataset in scale.datasets for place in sweep.places_for(dataset)]
    spent = [_baselines_mj(results, dataset, place) for dataset, place in places]
    return math.inf if None in spent else LINKS_AT_MOST * sum(each or 0.0 for each in spent) / len(spent)


def _baselines_mj(results: Results, dataset: str, place: Mapping[str, Any]) -> float | None:
    """Mean link joules of the four at one place; None where one of them was not played."""
    means = [results.figures(point(dataset, method, **place), "link_energy_mj").values() for method in BASELINES]
    return sum(sum(each) / len(each) for each in means) / len(means) if all(means) else None


def choose_recipe(sweep: Sweep, found: Sequence[Tried], allowed_mj: float = math.inf) -> dict[str, Any]:
    """The guess with the changes that the rule makes."""
    settings: Mapping[str, Any] = sweep.guess
    for change in choose_changes(found, allowed_mj):
        settings = merge_layers(settings, change.settings)
    return dict(settings)


def choose_changes(found: Sequence[Tried], allowed_mj: float = math.inf) -> list[Change]:
    """At most one for each part, in their order."""
    if not found or found[0].change is not None:
        return []
    others = [each for each in found if each.change is not None and each.link_mj <= allowed_mj]
    parts = dict.fromkeys(each.change.part for each in others if each.change is not None)
    chosen = [
        _best_of(found[0], [each for each in others if each.change and each.change.part == part]) for part in parts
    ]
    return [each.change for each in chosen if each.change is not None]


def gain_by_seed(mine: Tried, other: Tried) -> PairedDifference | None:
    """Points more than the other, clustered: places with the same seed are one observation."""
    return paired_or_none(mine.by_seed, other.by_seed)


def gain(mine: Tried, other: Tried) -> PairedDifference | None:
    """Points more than the other, world by world; this is what the recipe was chosen by.

    Worlds with the same seed are not independent, so this interval is too narrow; `gain_by_seed` shows the right one.
    """
    worlds = sorted(mine.accuracy.keys() & other.accuracy.keys())
    numbered = [{number: each.accuracy[world] for number, world in enumerate(worlds)} for each in (mine, other)]
    return paired_or_none(numbered[0], numbered[1])


def _best_of(guess: Tried, others: Sequence[Tried]) -> Tried:
    if others[0].change is not None and others[0].change.saves:
        top = max([guess, *others], key=lambda each: _mean(each, guess))
        good = [each for each in (guess, *others) if _is_as_good(each, top)]
        return min(good, key=lambda each: each.link_mj)
    better = [each for each in others if _is_better(each, guess)]
    return max(better, key=lambda each: _mean(each, guess)) if better else guess


def _mean(mine: Tried, guess: Tried) -> float:
    difference = gain(mine, guess)
    return float("-inf") if difference is None else difference.mean


def _is_better(mine: Tried, other: Tried) -> bool:
    difference = gain(mine, other)
    return difference is not None and difference.low is not None and difference.low > 0


def _is_as_good(mine: Tried, top: Tried) -> bool:
    difference = gain(mine, top)
    if difference is None or difference.high is None:
        return False
    return mine is top or (difference.mean >= -TOLERATED and difference.high >= 0)


def _measure_change(results: Results, scale: Scale, sweep: Sweep, change: Change | None) -> Tried:
    settings = sweep.guess if change is None else merge_layers(sweep.guess, change.settings)
    accuracy: dict[World, float] = {}
    joules: list[float] = []
    places: list[dict[int, float]] = []
    for dataset in scale.datasets:
        for place in sweep.places_for(dataset):
            at = point(dataset, "hat-dfed", **place, **settings)
            where = f"{dataset} {list(place.values())}"
            places.append(results.figures(at, "validation_accuracy"))
            accuracy |= {f"{where} {seed}": value for seed, value in places[-1].items()}
            joules += results.figures(at, "link_energy_mj").values()
    return Tried(change, accuracy, mean_of_places(places), sum(joules) / len(joules) if joules else 0.0)


def _rows(results: Results, claims: Claims, scale: Scale) -> list[Row]:
    """Sweep by sweep, the guess first; a sweep that has not been played has no rows."""
    rows = []
    for name, sweep in SWEEPS.items():
        found = measure_changes(results, scale, sweep)
        allowed = allowed_link_mj(results, scale, sweep)
        chosen = choose_changes(found, allowed)
        for each in found:
            rows.append(
                {
                    "sweep": name,
                    "part": each.change.part if each.change else "",
                    "words": each.change.words if each.change else "the guess",
                    "validation_points": interval_or_none(gain(each, found[0]) if each.change else None),
                    "validation_points_by_seed": interval_or_none(
                        gain_by_seed(each, found[0]) if each.change else None
                    ),
                    "link_energy_mj": round(each.link_mj, 4),
                    "is_allowed": each.link_mj <= allowed,
                    "is_chosen": each.change in chosen,
                    "seeds": sorted(each.accuracy),
                }
            )
    return rows


def markdown_by_sweep(rows: Sequence[Row]) -> dict[str, str]:
    """A table for each sweep that has been played: every value, what it brought and cost, what was chosen."""
    headings = ["part", "instead of the guess", "validation points", "clustered by seed", "link MJ", "", "worlds"]
    cells: dict[str, list[list[str]]] = {}
    for row in rows:
        points, clustered = row["validation_points"], row["validation_points_by_seed"]
        verdict = "**chosen**" if row["is_chosen"] else "" if row["is_allowed"] else "too expensive"
        cells.setdefault(row["sweep"], []).append(
            [
                row["part"],
                row["words"],
                NOTHING if points is None else format_difference(points, 1),
                NOTHING if clustered is None else format_difference(clustered, 1),
                f"{row['link_energy_mj']:.3f}",
                verdict,
                str(len(row["seeds"])),
            ]
        )
    return {name: table(headings, lines) for name, lines in cells.items()}


def _markdown(rows: Sequence[Row]) -> str:
    return "\n\n".join(markdown_by_sweep(rows).values())


EXPERIMENTS = (
    Experiment(
        "plus_search",
        "What hat-dfed-plus should be made of, on validation data",
        partial(_points, "plus_search"),
        BEYOND,
        seeds=3,
        first_seed=100,
        tables=(Table("plus_search", _rows, _markdown),),
    ),
    Experiment(
        "plus_search_again",
        "Again, from what that chose",
        partial(_points, "plus_search_again"),
        BEYOND,
        seeds=5,
        first_seed=103,
    ),
    Experiment(
        "plus_search_many",
        "The same question with 20 and 50 servers",
        partial(_points, "plus_search_many"),
        BEYOND,
        seeds=3,
        first_seed=108,
    ),
)
