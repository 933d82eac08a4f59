"""What the main loop asks of a fleet, however its servers are run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hatdfed.core.round import RoundPlan, RoundReport

Snapshot = Mapping[str, NDArray[Any]]


class Fleet(Protocol):
    """N servers that play rounds."""

    @property
    def num_servers(self) -> int:
        """N."""

    def validation_accuracy(self) -> NDArray[np.float64]:
        """[N] of the models as they are now, on validation data."""

    def run_round(self, plan: RoundPlan) -> RoundReport:
        """Train, exchange, merge, measure.

        May be asked for the same round again until the next one is asked for, and then gives the same result.
        """

    def snapshot(self) -> Snapshot:
        """Everything the servers remember, as named arrays."""

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to what `snapshot` remembers."""
