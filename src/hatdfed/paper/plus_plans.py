"""What `hat-dfed-plus` is made of is searched for on validation data: one part at a time is changed from a first guess.

The seeds of the search are worlds that no table uses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hatdfed.methods import method_named
from hatdfed.resolve import merge_layers

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


WITHOUT = without_each_part(method_named("hat-dfed-plus").settings)


# Where it might matter which links are drawn.
REGIMES: Mapping[str, Mapping[str, Any]] = {
    "as it is": {},
    "prices spread 100 ×": {"energy": {"link_kbit_per_joule": [1.0, 100.0]}},
    "no finish": {"schedule": {"finish_rounds": 0}},
    "servers come and go": {"churn": 0.3},
    "two groups without a common label": {"label_groups": 2},
}
# The recipe, the same with random links, and with links that a bandit learns.
CHOOSERS: Mapping[str, Mapping[str, Any]] = {
    "hat-dfed-plus": {},
    "random links": {"policy": {"thrift": 0.0}},
    "learned links": {"policy": {"learning_rate": None}, "gain_share": 1.0},
}


def search_settings() -> Iterator[dict[str, Any]]:
    """The first guess, then every change of it, as settings on top of `hat-dfed`."""
    yield dict(FIRST_GUESS)
    for change in CHANGES:
        yield merge_layers(FIRST_GUESS, change.settings)
