"""What travels in a round: the plan goes down to the servers, reports come up, a record is kept.

Only scalars go up. No model ever passes through the coordinator, so everything here is numpy and small.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hatdfed.energy.ledger import EnergyRow
from hatdfed.presence import Presence
from hatdfed.topology import BoolMatrix, FloatMatrix, Scalar, Topology

Row = NDArray[np.float64]  # [N], nan where nothing was received


class LinkDraw(NamedTuple):
    """The links of one round and the probabilities with which they were drawn."""

    topology: Topology
    propensity: FloatMatrix  # [N, N] read-only, from the moment before rounding
    mixing: FloatMatrix | None = None  # [N, N] weight of each model by plan, diagonal included; rows sum to 1


class RoundPlan(NamedTuple):
    """What the coordinator broadcasts."""

    t: int
    draw: LinkDraw
    presence: Presence | None = None  # on real machines: who was there when it was drawn


class ServerReport(NamedTuple):
    """What one server tells the coordinator after a round."""

    accuracy: float  # of the merged model on validation data, a fraction
    num_samples: int  # trained on in this round
    importance: Row  # [N] weight that each model got in the merge, nan where none came
    delivered: NDArray[np.bool_]  # [N] whose models arrived
    energy: tuple[EnergyRow, ...]  # what this server and its devices spent
    scores: Mapping[str, Row] = {}  # what the method's judge thought of each model: "loss", "similarity", …


class RoundReport(NamedTuple):
    """The reports of all servers; None where none came."""

    servers: tuple[ServerReport | None, ...]

    @property
    def accuracy(self) -> Row:
        """[N], nan where no report came."""
        return np.array([np.nan if report is None else report.accuracy for report in self.servers])

    @property
    def reported(self) -> NDArray[np.bool_]:
        """[N] whose report came."""
        return np.array([report is not None for report in self.servers])

    @property
    def delivered(self) -> BoolMatrix:
        """[N, N] which models arrived; row receives."""
        nothing = np.zeros(len(self.servers), dtype=bool)
        return _stacked([nothing if report is None else report.delivered for report in self.servers])

    @property
    def importance(self) -> FloatMatrix:
        """[N, N] weight of each received model, nan where none came; row receives."""
        nothing = np.full(len(self.servers), np.nan)
        return _stacked([nothing if report is None else report.importance for report in self.servers])

    @property
    def energy(self) -> tuple[EnergyRow, ...]:
        """All ledger rows of the round."""
        return tuple(row for report in self.servers if report is not None for row in report.energy)


def _stacked(rows: list[NDArray[Scalar]]) -> NDArray[Scalar]:
    """What np.stack does, up to three times faster for a thousand rows."""
    return np.concatenate(rows).reshape(len(rows), -1)


class Regret(NamedTuple):
    """Utility missed so far, Eq. (23), against two opponents."""

    best_fixed: float  # the best set of links kept for all rounds: what bandit bounds are about
    best_each_round: float  # the best set of every single round: what Eq. (22) prints


class RoundRecord(NamedTuple):
    """Everything worth keeping of one round."""

    t: int
    draw: LinkDraw
    report: RoundReport
    utility: FloatMatrix  # [N, N] u of every link, drawn or not
    regret: Regret
