"""What each part brings with each way to draw links: every combination of four parts and four topologies.

A part's effect is its presence against its absence, mean over all combinations of the other three, seed by seed. No
topology looks at prices (thrift 0), so that balance is not confounded with them: *random* and *balanced* draw as many
links, the one wherever they fall, the other so that everybody sends and receives one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from hatdfed.setup.layers import merge_layers
from hatdfed.setup.methods import method_named
from hatdfed_paper.claims import Claims
from hatdfed_paper.differences import mean_over_seeds
from hatdfed_paper.experiment import BEYOND, Experiment, Table
from hatdfed_paper.markdown import NOTHING, format_difference, table
from hatdfed_paper.plan import FULL, PLUS, Scale, Settings, point
from hatdfed_paper.protocol import Protocol, decide
from hatdfed_paper.results import Results
from hatdfed_paper.rows import Row, interval_or_none

_RECIPE = method_named(PLUS).settings
_FINISH = _RECIPE["schedule"]["finish_rounds"]
PARTS: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {  # without and with
    "loss": ({"loss": {"name": "cross-entropy"}}, {"loss": _RECIPE["loss"]}),
    "cool-down": ({"learner": {"cool_down": 0.0}}, {"learner": _RECIPE["learner"]}),
    "finish": ({"schedule": {"finish_rounds": 0}}, {"schedule": {"finish_rounds": _FINISH}}),
    "codec": ({"codec": "float32"}, {"codec": _RECIPE["codec"]}),
}  # fmt: skip
BALANCED, RANDOM = "balanced", "random"
BALANCE = "balance"  # the effect that decides
_EVERY = {"schedule": {"every": _RECIPE["schedule"]["every"]}}
_METHODS = {"ring": "d-psgd", "sgp": "sgp", RANDOM: PLUS, BALANCED: PLUS}
Parts = tuple[bool, ...]


def combinations() -> list[Parts]:
    """Which parts are there, in the order of `PARTS`: every combination."""
    return list(product((False, True), repeat=len(PARTS)))


def combine(dataset: str, servers: int, topology: str, there: Parts) -> Settings:
    """A topology with these parts."""
    given = [PARTS[name][is_there] for name, is_there in zip(PARTS, there, strict=True)]
    drawn: Mapping[str, Any] = {}
    if topology == BALANCED:
        drawn = {"policy": {"degree": 1, "thrift": 0.0}}
    if topology == RANDOM:
        share = 1 / (servers - 1)  # one link for each server, on average
        drawn = {"policy": {"name": "priced-links", "thrift": 0.0, "learning_rate": 0.0}, "link_share": share}
    return point(dataset, _METHODS[topology], servers=servers, **merge_layers(_EVERY, *given, drawn))


def fleets(scale: Scale) -> tuple[int, ...]:
    """Numbers of servers."""
    return (5, 20) if scale == FULL else scale.servers[:1]


def _points(dataset: str, scale: Scale) -> Iterator[Settings]:
    for servers, topology, there in product(fleets(scale), _METHODS, combinations()):
        yield combine(dataset, servers, topology, there)


def _decisive(dataset: str, scale: Scale) -> Iterator[Settings]:
    for topology, there in product((RANDOM, BALANCED), combinations()):
        yield combine(dataset, fleets(scale)[0], topology, there)


def _accuracy(results: Results, dataset: str, servers: int, topology: str) -> dict[Parts, dict[int, float]]:
    """Test accuracy by combination and seed; nothing unless all combinations have been played."""
    found = {
        there: results.figures(combine(dataset, servers, topology, there), "avg_accuracy") for there in combinations()
    }
    return found if all(found.values()) else {}


def _apart(mine: Mapping[int, float], other: Mapping[int, float]) -> dict[int, float]:
    return {seed: mine[seed] - other[seed] for seed in mine.keys() & other.keys()}


def _rows(results: Results, claims: Claims, scale: Scale) -> list[Row]:
    """Main effects: of every part with every topology, then of balance."""
    rows = []
    for dataset, servers in product(scale.datasets, fleets(scale)):
        seen = {topology: _accuracy(results, dataset, servers, topology) for topology in _METHODS}
        effects = {}
        for topology, accuracy in seen.items():
            for place, part in enumerate(PARTS):
                with_it = [there for there in accuracy if there[place]]
                effects[part, topology] = [
                    _apart(accuracy[there], accuracy[(*there[:place], False, *there[place + 1 :])]) for there in with_it
                ]
            if topology not in (RANDOM, BALANCED):
                effects["balanced instead", topology] = _between(seen[BALANCED], accuracy)
        effects[BALANCE, RANDOM] = _between(seen[BALANCED], seen[RANDOM])
        for (part, topology), pairs in effects.items():
            difference = mean_over_seeds(pairs)
            if difference is not None:
                keys = {"dataset": dataset, "servers": servers, "part": part, "topology": topology}
                seeds = sorted(set.intersection(*(set(pair) for pair in pairs)))
                is_main = (part, servers) == (BALANCE, fleets(scale)[0])
                verdict = decide(difference, seeds, EXPERIMENT.planned_seeds(scale)) if is_main else None
                rows.append({**keys, "points": interval_or_none(difference), "verdict": verdict, "seeds": seeds})
    return rows


def _between(mine: Mapping[Parts, Any], other: Mapping[Parts, Any]) -> list[dict[int, float]]:
    return [_apart(mine[there], other[there]) for there in mine if there in other]


def _markdown(rows: Sequence[Row]) -> str:
    cells = [
        [row["dataset"], str(row["servers"]), row["part"], row["topology"], format_difference(row["points"], 2),
         row["verdict"] or NOTHING, str(len(row["seeds"]))]
        for row in rows
    ]  # fmt: skip
    return table(["data set", "N", "part", "topology", "main effect, points", "verdict", "seeds"], cells)


EXPERIMENT = Experiment(
    "attribution",
    "What each part brings with each topology, and what balance brings at thrift 0",
    _points,
    BEYOND,
    fleet_seeds={5: range(240, 250), 20: range(240, 245)},
    protocol=Protocol(
        comparison="balanced links against as many random links at thrift 0: test accuracy with five servers (λ 0.3, "
        "ρ 0.5), mean over all combinations of loss, cool-down, finish and codec, seed by seed, on each data set",
        null="the difference is 0 points or less",
        rule="on each data set by itself: reproduced if the 95 % interval lies above 0; otherwise not. Effects of "
        "parts and N = 20 are secondary; their intervals are not corrected for their number. A ring and sgp send other "
        "numbers of models than the other two, so what balance is ahead of them by is not at equal joules.",
    ),
    known="plus_ablation on seeds 0–9, in which balance was removed at thrift 8",
    decisive=_decisive,
    tables=(Table("attribution", _rows, _markdown),),
)
