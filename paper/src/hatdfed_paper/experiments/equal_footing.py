"""Every method with the parts of `hat-dfed-plus`: thinned until it spends no more link joules, or not thinned at all.

What a method's links cost is known beforehand: so many links a round at the mean price. `hat-dfed-plus` prefers cheap
ones, by as much as its probabilities and the prices of the same worlds say. The smallest m with which a method costs no
more, links in every m-th round, is its m.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial
from typing import Any

import numpy as np

from hatdfed.setup.build.coordinator import make_coordinator, make_prices
from hatdfed.setup.config import Config, ScheduleConfig
from hatdfed.setup.layers import merge_layers, resolve
from hatdfed.setup.run_identity import Since, without_newer
from hatdfed_paper.claims import Claims
from hatdfed_paper.experiment import BEYOND, Experiment, Table
from hatdfed_paper.plan import BASELINES, PLUS, Scale, Settings, point, settings_of_table_1
from hatdfed_paper.plus_comparison import PLACE, comparison_markdown, comparison_rows
from hatdfed_paper.results import Results
from hatdfed_paper.rows import Row

PARTS = ("loss", "learner", "common_init", "codec", "schedule")  # what every method is given
_WORLDS = range(10)  # whose prices are looked at
# Settings that change neither a draw nor a price of a link, at one value for all, so that a draw is made once.
_WITHOUT_A_SAY = {"seed": 0, "schedule": ScheduleConfig(), "dataset": "digits", "local_passes": 1, "label_groups": 1}


def equal_footing(method: str, dataset: str, servers: int) -> dict[str, Any]:
    """The settings that put `method` on one footing with `hat-dfed-plus`."""
    plus = resolve({"method": PLUS, "dataset": dataset, "servers": servers})
    given = {name: value for name, value in without_newer(plus, Since.V0_1).items() if name in PARTS}
    own = resolve({"method": method, "dataset": dataset, "servers": servers})
    return merge_layers(given, {"schedule": {"every": fitting_interval(own, plus)}})


def without_thrift(dataset: str) -> dict[str, Any]:
    """Its loss and its finish, but whole models in every round."""
    plus = without_newer(resolve({"method": PLUS, "dataset": dataset}), Since.V0_1)
    return {
        **{name: plus[name] for name in ("loss", "learner", "common_init")},
        "codec": "float32",
        "schedule": {"every": 1, "finish_rounds": plus["schedule"]["finish_rounds"]},
    }


def fitting_interval(own: Config, plus: Config) -> int:
    """The smallest m with which a method costs no more links at mean price than `hat-dfed-plus`."""
    rounds = plus.rounds - plus.schedule.finish_rounds
    allowed = rounds // plus.schedule.every * links_at_mean_price(plus)
    links = links_at_mean_price(own)
    return next(m for m in range(1, rounds + 2) if rounds // m * links <= allowed + 1e-9)


def links_at_mean_price(config: Config) -> float:
    """What a spoken round of this method costs, in links at the mean price; a learned preference is not counted."""
    return _links_at_mean_price(config.model_copy(update=_WITHOUT_A_SAY).model_dump_json())


@cache
def _links_at_mean_price(settings: str) -> float:
    config = Config.model_validate_json(settings)
    found = []
    for seed in _WORLDS:
        world = config.model_copy(update={"seed": seed})
        prices = make_prices(world, bits_per_sample=1, num_params=1)
        coordinator = make_coordinator(world, prices)
        draw = coordinator.plan(coordinator.start(np.zeros(config.servers))).draw
        if not config.policy.settings.get("thrift"):
            return float(draw.propensity.sum())  # no preference: where its links fall in ten worlds is chance
        joules = prices.joules_of(draw.links)
        found.append(float((draw.propensity * joules).sum() / joules.mean()))
    return float(np.mean(found))


def _points(dataset: str, scale: Scale) -> Iterator[Settings]:
    for setting in settings_of_table_1():
        yield point(dataset, PLUS, **setting)
        for method in (*BASELINES, "hat-dfed"):
            yield point(dataset, method, **setting, **equal_footing(method, dataset, 5))


def _large_points(dataset: str, scale: Scale) -> Iterator[Settings]:
    for servers in scale.servers[2:]:
        yield point(dataset, PLUS, servers=servers)
        for method in (*BASELINES, "hat-dfed"):
            yield point(dataset, method, servers=servers, **equal_footing(method, dataset, servers))


def _dense_points(dataset: str, scale: Scale) -> Iterator[Settings]:
    for setting in settings_of_table_1():
        yield point(dataset, PLUS, **setting)
        for method in BASELINES:
            yield point(dataset, method, **setting, **without_thrift(dataset))


def _rows(results: Results, claims: Claims, scale: Scale) -> list[Row]:
    return comparison_rows(results, [*_EQUAL.all_points(scale), *_EQUAL_LARGE.all_points(scale)])


def _dense_rows(results: Results, claims: Claims, scale: Scale) -> list[Row]:
    return comparison_rows(results, _DENSE.all_points(scale))


_EQUAL = Experiment(
    "plus_equal",
    "Every method with the same loss, finish, codec and link joules",
    _points,
    BEYOND,
    tables=(Table("plus_equal_footing", _rows, partial(comparison_markdown, keys=(*PLACE, "method", "every"))),),
)
_EQUAL_LARGE = Experiment("plus_equal_large", "The same with 20 and 50 servers", _large_points, BEYOND, seeds=5)
_DENSE = Experiment(
    "plus_dense",
    "The baselines with its loss and finish, but whole models in every round",
    _dense_points,
    BEYOND,
    tables=(Table("plus_dense", _dense_rows, comparison_markdown),),
)
EXPERIMENTS = (_EQUAL, _EQUAL_LARGE, _DENSE)
