"""Ways to draw the links of a round, by name.

Every policy in a module of this package that declares a `name` is found here; nothing has to be registered.
"""

from __future__ import annotations

from typing import cast

from hatdfed.core.policies.base import AnyPolicy
from hatdfed.registry import Registry, find_classes

POLICIES: Registry[type[AnyPolicy]] = Registry(
    "hatdfed.policies",
    cast(dict[str, type[AnyPolicy]], find_classes(__name__, __path__, "propose")),
    wanted="a dataclass with the methods of TopologyPolicy",
    fits=lambda thing: isinstance(thing, type),
    is_dataclass=True,
    methods=("init", "grow", "propose", "update"),
    values=("uses_budget", "plans_mixing", "needs_scores"),
)
