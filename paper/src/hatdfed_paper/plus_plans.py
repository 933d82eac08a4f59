"""What `hat-dfed-plus` is made of is searched for on validation data: one part at a time is changed from a guess.

Three sweeps: every part from a first guess; again, from what the first sweep chose, those parts that may have come to
depend on each other; and with many servers. Each has worlds of its own, that no table uses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hatdfed.setup.layers import merge_layers
from hatdfed.setup.methods import method_named
from hatdfed_paper.places import EASY, HARD

PLUS = "hat-dfed-plus-0.1"  # the recipe that the committed results are about

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

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Sweep:
    """A guess, changes of it, and where they meet."""

    guess: Settings
    changes: tuple[Change, ...]
    places: tuple[Settings, ...] = (HARD, EASY)
    large_places: tuple[Settings, ...] = ()  # on top, but not with CIFAR-10, whose large fleets take very long

    def places_for(self, dataset: str) -> tuple[Settings, ...]:
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
