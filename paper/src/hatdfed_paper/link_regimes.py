"""Where it might matter which links are drawn, and the ways to draw them that are held against each other there.

Links drawn at random are played twice: as many as the recipe draws, and so few that they cost no more than its links,
which is the fair question where prices differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hatdfed.setup.layers import merge_layers, resolve
from hatdfed_paper.equal_footing import fitting_interval
from hatdfed_paper.plus_plans import PLUS

AS_MANY, AS_DEAR, LEARNED = "random links, as many", "random links, as dear", "learned links"

REGIMES: Mapping[str, Mapping[str, Any]] = {
    "as it is": {},
    "prices spread 100 ×": {"energy": {"link_kbit_per_joule": [1.0, 100.0]}},
    "no finish": {"schedule": {"finish_rounds": 0}},
    "servers come and go": {"churn": 0.3},
    "two groups without a common label": {"label_groups": 2},
}
_RANDOM: Mapping[str, Any] = {"policy": {"thrift": 0.0}}
_LEARNING: Mapping[str, Any] = {"policy": {"learning_rate": None}, "gain_share": 1.0}


def ways_to_draw(dataset: str, servers: int) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Every regime with every way to draw links, and the settings of both on top of the recipe."""
    for regime, world in REGIMES.items():
        here = merge_layers({"servers": servers}, world)
        yield regime, PLUS, here
        yield regime, AS_MANY, merge_layers(here, _RANDOM)
        yield regime, AS_DEAR, merge_layers(here, _RANDOM, {"schedule": {"every": _interval(dataset, here)}})
        if (dataset, servers) != ("cifar-10", 50):  # which takes long; elsewhere learned links are like the recipe's
            yield regime, LEARNED, merge_layers(here, _LEARNING)


def _interval(dataset: str, here: Mapping[str, Any]) -> int:
    """The m with which random links in every m-th round cost no more than the recipe's."""
    plus = resolve({"method": PLUS, "dataset": dataset, **here})
    return fitting_interval(resolve({"method": PLUS, "dataset": dataset, **merge_layers(here, _RANDOM)}), plus)
