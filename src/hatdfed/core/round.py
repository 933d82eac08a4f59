"""What travels in a round: the plan goes down to the servers, reports come up, a record is kept.

Only scalars go up. No model ever passes through the coordinator, so everything here is numpy and small.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from hatdfed.core.availability import Presence
from hatdfed.core.consensus import Sketch
from hatdfed.core.energy.ledger import EnergyRow
from hatdfed.core.energy.prices import EnergyPrices
from hatdfed.core.links import BoolColumn, FloatColumn, FloatMatrix, Indices, LinkTable, Scalar, Topology
from hatdfed.core.regret import Regret

Values = NDArray[np.float64]


class LinkDraw(NamedTuple):
    """The links of one round and the probabilities with which they were drawn."""

    topology: Topology
    links: LinkTable  # that could be drawn from; every other link has probability 0
    propensity: FloatColumn  # [E] read-only, from the moment before rounding
    mixing: FloatMatrix | None = None  # [N, N] weight of each model by plan, diagonal included; rows sum to 1

    @property
    def places(self) -> Indices:
        """[L] where the drawn links stand in a column, in the order of the topology's pairs."""
        return self.links.places(*self.topology.pairs.T)

    @property
    def drawn(self) -> BoolColumn:
        """[E] which links were drawn."""
        drawn = np.zeros(len(self.links), dtype=bool)
        drawn[self.places] = True
        return drawn


class RoundPlan(NamedTuple):
    """What the coordinator broadcasts."""

    t: int
    draw: LinkDraw
    presence: Presence | None = None  # on real machines: who was there when it was drawn


class ServerReport(NamedTuple):
    """What one server tells the coordinator after a round: about itself, and about each model that it merged."""

    accuracy: float  # of the merged model on validation data, a fraction
    num_samples: int  # trained on in this round
    senders: Indices  # [n] whose models were merged: the server itself, and those whose models arrived
    importance: Values  # [n] weight that each model got in the merge
    energy: tuple[EnergyRow, ...]  # what this server and its devices spent
    scores: Mapping[str, Values] = {}  # [n] what the method's judge thought of each model: "loss", "similarity", …
    sketch: Sketch | None = None  # of its merged model, where the models lie apart


class Worked(Protocol):
    """What a server did with its devices' data."""

    @property
    def num_samples(self) -> int:
        """That it trained on."""

    @property
    def devices_online(self) -> int:
        """That sent them."""


class WorkDone(NamedTuple):
    """The same as two numbers, for whoever knows no more of it."""

    num_samples: int
    devices_online: int


def make_server_report(
    plan: RoundPlan,
    prices: EnergyPrices,
    server: int,
    work: Worked,
    *,
    accuracy: float,
    senders: Indices,
    importance: Values,
    scores: Mapping[str, Values],
    compression: float | Mapping[int, float],
    sketch: Sketch | None = None,
) -> ServerReport:
    """The report of `server` about itself and the models that it merged, those of `senders`.

    `compression` is the share of a float32 model that it sent, to all receivers or to each.
    """
    energy = _energy_spent(prices, plan, work, server, compression)
    return ServerReport(accuracy, work.num_samples, senders, importance, energy, scores, sketch)


def _energy_spent(
    prices: EnergyPrices, plan: RoundPlan, work: Worked, server: int, compression: float | Mapping[int, float]
) -> tuple[EnergyRow, ...]:
    """Uploads to the server, its training, and every model it sent, whether or not it was accepted."""
    receivers = plan.draw.topology.receivers(server)
    shares = compression if isinstance(compression, Mapping) else dict.fromkeys(receivers, compression)
    return (
        prices.upload(plan.t, server, work.devices_online, work.num_samples),
        prices.training(plan.t, server, work.num_samples),
        *(prices.link(plan.t, receiver, server, compression=shares[receiver]) for receiver in receivers),
    )


@dataclass(frozen=True, eq=False)
class RoundReport:
    """The reports of all servers; None where none came."""

    servers: tuple[ServerReport | None, ...]
    consensus_distance: float | None = None  # of the merged models, relative (`hatdfed.core.consensus`); None: unknown

    @cached_property
    def accuracy(self) -> Values:
        """[N], nan where no report came."""
        return np.array([np.nan if report is None else report.accuracy for report in self.servers])

    @cached_property
    def reported(self) -> NDArray[np.bool_]:
        """[N] whose report came."""
        return np.array([report is not None for report in self.servers])

    @property
    def energy(self) -> tuple[EnergyRow, ...]:
        """All ledger rows of the round."""
        return tuple(chain.from_iterable(report.energy for report in self.servers if report is not None))

    def arrived(self, topology: Topology) -> NDArray[np.bool_]:
        """[L] which of the round's models arrived, in the order of its pairs."""
        return self._find(topology) >= 0

    def weights(self, topology: Topology) -> Values:
        """[L] what each of the round's models weighed in the merge, nan where it did not come."""
        weights = np.append(self._received.of(lambda report: report.importance), np.nan)
        return weights[self._find(topology)]

    def delivered(self, links: LinkTable) -> BoolColumn:
        """[E] along which links a model arrived."""
        return self._column(links, np.ones(len(self._received.sender), dtype=bool), np.False_)

    def importance(self, links: LinkTable) -> FloatColumn:
        """[E] what each model weighed in the merge, nan where none came."""
        return self._column(links, self._received.of(lambda report: report.importance), np.float64(np.nan))

    def scores(self, name: str, links: LinkTable) -> FloatColumn:
        """[E] the score `name` of each model, nan where none came or it has no such score."""
        return self._column(links, self._received.of(lambda report: report.scores.get(name)), np.float64(np.nan))

    @cached_property
    def _received(self) -> _Received:
        reports = [report for report in self.servers if report is not None]
        receiver = np.repeat(np.flatnonzero(self.reported), [len(report.senders) for report in reports])
        sender = np.concatenate([np.zeros(0, dtype=np.int64), *(report.senders for report in reports)])
        is_link = receiver != sender
        return _Received(reports, is_link, receiver[is_link], sender[is_link])

    def _find(self, topology: Topology) -> Indices:
        """[L] where each of the topology's links stands among the models received; −1 where none came."""
        num_servers = topology.num_servers
        keys = self._received.receiver * num_servers + self._received.sender
        order = np.argsort(keys, kind="stable")
        wanted = topology.pairs[:, 0] * num_servers + topology.pairs[:, 1]
        place = np.searchsorted(keys, wanted, sorter=order)
        found = np.append(keys[order], -1)[place] == wanted
        return np.where(found, np.append(order, -1)[place], -1)

    def _column(self, links: LinkTable, values: NDArray[Scalar], nothing: Scalar) -> NDArray[Scalar]:
        column = np.full(len(links), nothing)
        column[links.places(self._received.receiver, self._received.sender)] = values
        return column


class _Received(NamedTuple):
    """The models that servers got from others, one after the other."""

    reports: list[ServerReport]
    is_link: NDArray[np.bool_]  # which of all the reports' rows are about them, and not about a server's own model
    receiver: Indices  # [H]
    sender: Indices  # [H]

    def of(self, rows: Callable[[ServerReport], Values | None]) -> Values:  # -> [H]
        """What rows of the reports say about them; nan where a report has no such rows."""
        found = [rows(report) for report in self.reports]
        told = [
            np.full(len(report.senders), np.nan) if row is None else row
            for report, row in zip(self.reports, found, strict=True)
        ]
        return np.concatenate([np.zeros(0), *told])[self.is_link]


class RoundRecord(NamedTuple):
    """Everything worth keeping of one round."""

    t: int
    draw: LinkDraw
    report: RoundReport
    utility: FloatColumn  # [E] u of every link that is considered, drawn or not
    regret: Regret
