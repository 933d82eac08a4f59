"""Ways to draw the links of a round, by name.

Every policy in a module of this package that declares a `name` is found here; nothing has to be registered.
"""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from typing import cast

from hatdfed.core.policies.base import AnyPolicy
from hatdfed.registry import Registry


def _find_policies() -> dict[str, type[AnyPolicy]]:
    """Import the modules of this package and collect their policies, sorted by name."""
    found: dict[str, type[AnyPolicy]] = {}
    for module in pkgutil.iter_modules(__path__):
        for member in vars(importlib.import_module(f"{__name__}.{module.name}")).values():
            # A policy that is imported from another module is found twice.
            if isinstance(member, type) and "propose" in dir(member) and "name" in vars(member):
                name, policy = vars(member)["name"], cast(type[AnyPolicy], member)
                if found.setdefault(name, policy) is not policy:
                    raise TypeError(f"{policy.__name__} and {found[name].__name__} have the same name: {name}")
    return dict(sorted(found.items()))


POLICIES: Registry[type[AnyPolicy]] = Registry(
    "hatdfed.policies",
    _find_policies(),
    wanted="a dataclass with the methods of TopologyPolicy",
    fits=lambda thing: isinstance(thing, type) and dataclasses.is_dataclass(thing),
    methods=("init", "grow", "propose", "update"),
    values=("uses_budget", "plans_mixing", "needs_scores"),
)
