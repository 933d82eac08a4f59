"""Real machines behind the same protocol as every other fleet: a plan goes out, reports come back.

Models never pass through here, and neither does torch: each edge runs the `EdgeProgram` and keeps its own state.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from hatdfed.core.fleet import Snapshot
from hatdfed.core.round import RoundPlan, RoundReport


class RemoteFleet:
    """N servers somewhere else."""

    def __init__(
        self,
        play: Callable[[RoundPlan], RoundReport],
        accuracy: Callable[[], NDArray[np.float64]],
    ) -> None:
        self._play = play
        self._accuracy = accuracy

    @property
    def num_servers(self) -> int:
        """N, as of now: servers may join."""
        return len(self._accuracy())

    def validation_accuracy(self) -> NDArray[np.float64]:
        """[N] of the models that the servers came with."""
        return self._accuracy()

    def run_round(self, plan: RoundPlan) -> RoundReport:
        """Announce the plan and wait for the reports; the same plan again gives what the servers did the first time."""
        return self._play(plan)

    def snapshot(self) -> Snapshot:
        """Nothing: every edge keeps its own state."""
        return {}

    def restore(self, snapshot: Snapshot) -> None:
        """Nothing to do: edges that return bring their state."""
