"""Which messages of a simulated round do not arrive: the network loses them, or they come after the deadline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hatdfed.core.link_loss import LinkLoss
from hatdfed.core.links import BoolColumn
from hatdfed.core.round import RoundPlan, Worked
from hatdfed.core.timing.deadline import Deadline


class Delivery(NamedTuple):
    """What may keep a run's messages from arriving; by default nothing."""

    loss: LinkLoss | None = None
    deadline: Deadline | None = None  # None: everybody is waited for

    def find_lost(self, plan: RoundPlan, works: Sequence[Worked]) -> BoolColumn:  # [N] -> [L] in the plan's order
        """Which of the messages that were planned do not arrive, given what the servers did."""
        pairs = plan.draw.topology.pairs
        lost: BoolColumn = np.zeros(len(pairs), dtype=bool)
        if self.loss is not None:
            lost |= self.loss.find_lost(plan.t, pairs)
        if self.deadline is not None:
            lost |= self.deadline.find_late(plan, works)
        return lost


SURE = Delivery()
