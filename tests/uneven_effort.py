"""Plans in which every server is to train differently, for tests of what fleets make of them."""

import numpy as np

from hatdfed.core.coordinator import Coordinator
from hatdfed.core.effort import Effort


def make_uneven_effort(t, num_servers):
    """Passes 0 to 3, and one server in three asks nobody; it changes from round to round."""
    place = np.arange(num_servers) + t
    return Effort(passes=place % 4, asks=place % 3 != 1)


def plan_unevenly(monkeypatch):
    """Let every coordinator plan uneven efforts."""
    plan = Coordinator.plan

    def plan_with_effort(self, *arguments):
        made = plan(self, *arguments)
        return made._replace(effort=make_uneven_effort(made.t, self.prices.num_servers))

    monkeypatch.setattr(Coordinator, "plan", plan_with_effort)
