"""An upper bound for policies that learn whom to hear: it is told who belongs together.

It knows the groups of a simulated world, before and after they change, and who has bad data or lies: such servers are
alone. Links are balanced and drawn by price, as in `balanced-links`, inside groups only. Not for comparison: no real
deployment has this knowledge.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from hatdfed.core.links import BoolColumn, FloatColumn
from hatdfed.core.policies.base import NoState, PolicyContext, Stateless, certain, silence
from hatdfed.core.policies.priced_links import APART, draw_inside, find_degree, scale_prices
from hatdfed.core.round import LinkDraw


@dataclass(frozen=True)
class KnownGroups(Stateless):
    """Balanced links by price inside the true groups."""

    name: ClassVar[str] = "known-groups"

    group: tuple[int, ...] = ()  # [N] before the change; those of a simulated world are filled in
    last_group: tuple[int, ...] = ()  # [N] after it
    change_at: float = 1.0  # share of the run
    thrift: float = 8.0
    degree: int | None = None

    uses_budget: ClassVar[bool] = False
    takes_candidates: ClassVar[bool] = True

    def preference(self, state: NoState, context: PolicyContext) -> FloatColumn:
        """Cheap links inside groups."""
        return self._log_weights(context) - APART * ~self._is_inside(context)

    def propose(self, state: NoState, context: PolicyContext, rng: np.random.Generator) -> LinkDraw:
        """Balanced links inside groups."""
        degree = find_degree(self.degree, context.links)
        drawn = draw_inside(self._groups(context), self._log_weights(context), context, degree, rng)
        return certain(context.links, drawn) if drawn.any() else silence(context, plans_mixing=False)

    def finish(self, state: NoState, context: PolicyContext) -> BoolColumn:
        """All possible links inside groups."""
        return context.possible & self._is_inside(context)

    def _is_inside(self, context: PolicyContext) -> BoolColumn:
        group = self._groups(context)
        inside: BoolColumn = context.links.at_receivers(group) == context.links.at_senders(group)
        return inside

    def _log_weights(self, context: PolicyContext) -> FloatColumn:
        return -self.thrift * scale_prices(context.prices, context.possible)

    def _groups(self, context: PolicyContext) -> NDArray[np.int64]:  # -> [N]
        is_before = context.t < int(self.change_at * context.horizon)
        known = self.group if is_before else self.last_group
        return np.array(known if known else [0] * len(context.active), dtype=np.int64)
