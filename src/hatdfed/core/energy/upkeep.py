"""Energy besides uploads, training and links: evaluating models on a probe, merging them, and being switched on.

Servers do not report it: it follows from what they report, and from how long the round lasts. By default it costs
nothing, as in the paper.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hatdfed.core.energy.energy_model import Cause, EnergyRow
from hatdfed.core.round import RoundReport, ServerReport

Values = NDArray[np.float64]


class Upkeep(NamedTuple):
    """What it costs."""

    probe_joules: float  # to evaluate one model on the probe
    merge_joules: float  # to merge one received model
    idle_watts: Values  # [N] of a server that takes part, from the beginning of a round to its end

    def find_rows(
        self, t: int, report: RoundReport, active: NDArray[np.bool_], seconds: float
    ) -> tuple[EnergyRow, ...]:  # [N]
        """The ledger's rows for the servers that took part in a round and reported."""
        rows = []
        for server, told in enumerate(report.servers):
            if told is None or not active[server]:
                continue
            joules = {
                Cause.PROBE: self.probe_joules * _count_evaluated(told),
                Cause.MERGE: self.merge_joules * (len(told.senders) - 1),
                Cause.IDLE: float(self.idle_watts[server]) * seconds,
            }
            rows += [EnergyRow(t, cause, server, server, 0.0, spent) for cause, spent in joules.items() if spent]
        return tuple(rows)

    def find_most(self, most_received: Values, seconds: float) -> Values:  # [N] -> [N]
        """The most that it can be for servers that receive up to so many models."""
        most: Values = (
            self.probe_joules * (1 + most_received) + self.merge_joules * most_received + self.idle_watts * seconds
        )
        return most


def _count_evaluated(report: ServerReport) -> int:
    """Models with a loss were evaluated on the probe, the server's own among them."""
    return len(report.senders) if "loss" in report.scores else 0
