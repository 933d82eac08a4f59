"""How much every server trains in a round, one file for each kind of policy.

A class with a `name` in a file of this folder is found here; nothing has to be registered.
"""

from __future__ import annotations

from typing import cast

from hatdfed.core.training.base import AnyTraining
from hatdfed.registry import Registry, find_classes

TRAINING: Registry[type[AnyTraining]] = Registry(
    "hatdfed.training",
    cast(dict[str, type[AnyTraining]], find_classes(__name__, __path__, "propose")),
    wanted="a dataclass with the methods of TrainingPolicy",
    fits=lambda thing: isinstance(thing, type),
    is_dataclass=True,
    methods=("init", "grow", "find_most_passes", "propose", "update"),
)
