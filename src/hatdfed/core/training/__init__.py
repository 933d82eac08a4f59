"""How much every server trains in a round, one file for each kind of policy.

A class with a `name` in a file of this folder is found here; nothing has to be registered.
"""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from typing import cast

from hatdfed.core.training.base import AnyTraining
from hatdfed.registry import Registry


def _find_training() -> dict[str, type[AnyTraining]]:
    """Import the modules of this package and collect their policies, sorted by name."""
    found: dict[str, type[AnyTraining]] = {}
    for module in pkgutil.iter_modules(__path__):
        for member in vars(importlib.import_module(f"{__name__}.{module.name}")).values():
            if isinstance(member, type) and "propose" in dir(member) and "name" in vars(member):
                name, policy = vars(member)["name"], cast(type[AnyTraining], member)
                if found.setdefault(name, policy) is not policy:
                    raise TypeError(f"{policy.__name__} and {found[name].__name__} have the same name: {name}")
    return dict(sorted(found.items()))


TRAINING: Registry[type[AnyTraining]] = Registry(
    "hatdfed.training",
    _find_training(),
    wanted="a dataclass with the methods of TrainingPolicy",
    fits=lambda thing: isinstance(thing, type) and dataclasses.is_dataclass(thing),
    methods=("init", "grow", "find_most_passes", "propose", "update"),
)
