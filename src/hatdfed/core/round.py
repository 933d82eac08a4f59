"""What travels in a round: the plan goes down to the servers, reports come up, a record is kept.

Only scalars go up. No model ever passes through the coordinator, so everything here is numpy and small.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hatdfed.core.availability import Presence
from hatdfed.core.consensus import Sketch
from hatdfed.core.energy.ledger import EnergyRow
from hatdfed.core.links import BoolMatrix, FloatMatrix, Indices, Scalar, Topology

Row = NDArray[np.float64]  # [N], nan where nothing was received


class LinkDraw(NamedTuple):
    """The links of one round and the probabilities with which they were drawn.

    Where every server considers d senders only, tables of links have d columns: column c of row i is about sender
    `candidates[i, c]`, and every other link has probability 0. Else column j is about sender j.
    """

    topology: Topology
    propensity: FloatMatrix  # [N, N or d] read-only, from the moment before rounding
    mixing: FloatMatrix | None = None  # [N, N] weight of each model by plan, diagonal included; rows sum to 1
    candidates: Indices | None = None  # [N, d] ascending in each row; None: everybody considers everybody

    @property
    def places(self) -> Indices:
        """[L] where the drawn links stand in a table of links, counted row by row; in the order of their pairs."""
        num_servers = self.topology.num_servers
        wanted: Indices = self.topology.pairs[:, 0] * num_servers + self.topology.pairs[:, 1]
        if self.candidates is None:
            return wanted
        considered = (self.candidates + num_servers * np.arange(num_servers)[:, None]).reshape(-1)
        return considered.searchsorted(wanted).astype(np.int64, copy=False)

    @property
    def drawn(self) -> BoolMatrix:
        """[N, N or d] which links were drawn, as a table."""
        if self.candidates is None:
            return self.topology.links
        drawn = np.zeros(self.candidates.shape, dtype=bool)
        drawn.put(self.places, True)
        return drawn


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
    senders: Indices | None = None  # [n] whom these rows are about, if not all servers: it and whom it heard
    sketch: Sketch | None = None  # of its merged model, where the models lie apart

    def row(self, values: NDArray[Scalar], nothing: Scalar, num_servers: int) -> NDArray[Scalar]:
        """[N] one of these rows with a place for every server."""
        if self.senders is None:
            return values
        spread = np.full(num_servers, nothing)
        spread[self.senders] = values
        return spread


class RoundReport(NamedTuple):
    """The reports of all servers; None where none came."""

    servers: tuple[ServerReport | None, ...]
    consensus_distance: float | None = None  # of the merged models, relative (`hatdfed.core.consensus`); None: unknown

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
        size = len(self.servers)
        nothing = np.zeros(size, dtype=bool)
        return _stacked(
            [nothing if report is None else report.row(report.delivered, np.False_, size) for report in self.servers]
        )

    @property
    def importance(self) -> FloatMatrix:
        """[N, N] weight of each received model, nan where none came; row receives."""
        size, nan = len(self.servers), np.float64(np.nan)
        nothing = np.full(size, nan)
        return _stacked(
            [nothing if report is None else report.row(report.importance, nan, size) for report in self.servers]
        )

    def arrived(self, topology: Topology) -> NDArray[np.bool_]:
        """[L] which of the round's models arrived, in the order of its pairs."""
        heard = self._heard()
        if heard is None:
            return self.delivered[topology.pairs[:, 0], topology.pairs[:, 1]]
        return _looked_up(topology, heard.link, heard.delivered, np.False_)

    def weights(self, topology: Topology) -> Row:
        """[L] what each of the round's models weighed in the merge, nan where it did not come."""
        heard = self._heard()
        if heard is None:
            return self.importance[topology.pairs[:, 0], topology.pairs[:, 1]]
        return _looked_up(topology, heard.link, heard.importance, np.float64(np.nan))

    def _heard(self) -> _Heard | None:
        """Everything that anybody heard, if all reports say whom they are about; else matrices have it."""
        known = [report for report in self.servers if report is not None]
        senders = [report.senders for report in known if report.senders is not None]
        if not known or len(senders) < len(known):
            return None
        receiver = np.repeat(np.flatnonzero(self.reported), [len(those) for those in senders])
        link = receiver * len(self.servers) + np.concatenate(senders)
        order = np.argsort(link)
        delivered, importance = (
            np.concatenate([getattr(report, name) for report in known]) for name in ("delivered", "importance")
        )
        return _Heard(link[order], delivered[order], importance[order])

    @property
    def energy(self) -> tuple[EnergyRow, ...]:
        """All ledger rows of the round."""
        return tuple(chain.from_iterable(report.energy for report in self.servers if report is not None))


class _Heard(NamedTuple):
    """All models that were heard, one's own among them."""

    link: Indices  # [H] receiver · N + sender, ascending
    delivered: NDArray[np.bool_]
    importance: Row


def _looked_up(topology: Topology, link: Indices, values: NDArray[Scalar], nothing: Scalar) -> NDArray[Scalar]:
    """[L] what `values` say of each of the topology's links."""
    wanted = topology.pairs[:, 0] * topology.num_servers + topology.pairs[:, 1]
    place = np.minimum(np.searchsorted(link, wanted), len(link) - 1)
    return np.where(link[place] == wanted, values[place], nothing)


def _stacked(rows: list[NDArray[Scalar]]) -> NDArray[Scalar]:
    """What np.stack does, up to three times faster for a thousand rows."""
    return np.concatenate(rows).reshape(len(rows), -1)


class Regret(NamedTuple):
    """Utility missed so far, Eq. (23), against two opponents."""

    best_fixed: float  # the best set of links kept for all rounds: what bandit bounds are about; nan of varying size
    best_each_round: float  # the best set of every single round: what Eq. (22) prints


class RoundRecord(NamedTuple):
    """Everything worth keeping of one round."""

    t: int
    draw: LinkDraw
    report: RoundReport
    utility: FloatMatrix  # [N, N] u of every link, drawn or not
    regret: Regret
