"""`hat-dfed-plus` without each of its parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from hatdfed.setup.methods import method_named
from hatdfed_paper.claims import Claims
from hatdfed_paper.experiment import BEYOND, Experiment, Table
from hatdfed_paper.experiments.plus_search import Change
from hatdfed_paper.plan import PLUS, Scale, Settings, point
from hatdfed_paper.plus_comparison import compare_plus, comparison_markdown
from hatdfed_paper.results import Results
from hatdfed_paper.rows import Row, row_of


def without_each_part(recipe: Mapping[str, Any]) -> tuple[Change, ...]:
    """What a recipe is without each part that it has."""
    policy = {name: value for name, value in recipe["policy"].items() if name != "degree"}
    wherever = {"policy": policy | {"name": "priced-links"}, "link_share": 0.25}
    has_start, has_cool_down = recipe.get("common_init"), recipe.get("learner", {}).get("cool_down")
    every, finish = recipe["schedule"]["every"], recipe["schedule"]["finish_rounds"]
    parts = [
        (Change("loss", "without the label prior", {"loss": {"name": "cross-entropy"}}), True),
        (Change("cool-down", "steps of full length to the end", {"learner": {"cool_down": 0.0}}), has_cool_down),
        (Change("start", "every server starts from its own model", {"common_init": False}), has_start),
        (Change("finish", "without the finish", {"schedule": {"finish_rounds": 0}}), finish),
        (Change("every", "links in every round", {"schedule": {"every": 1}}, saves=True), every > 1),
        (Change("codec", "float32 on the links", {"codec": "float32"}, saves=True), recipe["codec"] != "float32"),
        (Change("balance", "links wherever they fall", wherever), recipe["policy"]["name"] == "balanced-links"),
        (Change("thrift", "prices ignored", {"policy": {"thrift": 0.0}}, saves=True), recipe["policy"]["thrift"]),
    ]  # fmt: skip
    return tuple(change for change, is_part in parts if is_part)


WITHOUT = without_each_part(method_named(PLUS).settings)


def _points(dataset: str, scale: Scale) -> Iterator[Settings]:
    yield point(dataset, PLUS)
    for without in WITHOUT:
        yield point(dataset, PLUS, **without.settings)


def _rows(results: Results, claims: Claims, scale: Scale) -> list[Row]:
    rows = []
    for dataset in scale.datasets:
        whole = point(dataset, PLUS)
        for without in WITHOUT:
            settings = point(dataset, PLUS, **without.settings)
            at = results.at(settings)
            if at and results.at(whole):
                keys = {"dataset": dataset, "part": without.part, "words": without.words}
                ahead = compare_plus(results, whole, {without.part: settings})
                rows.append({**row_of(at, keys, None), "plus_is_ahead_by": ahead})
    return rows


EXPERIMENT = Experiment(
    "plus_ablation",
    "hat-dfed-plus without each of its parts",
    _points,
    BEYOND,
    tables=(Table("plus_ablation", _rows, partial(comparison_markdown, keys=("dataset", "words"))),),
)
