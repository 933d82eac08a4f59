"""One round: who is there, the plan that goes down to the servers, the reports that come up, the record that is kept.

Only scalars go up, and where models lie apart a sketch of each. No model ever passes through the coordinator, so
everything here is numpy and small.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property, lru_cache
from itertools import chain
from types import MappingProxyType
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from hatdfed.core.beliefs import Beliefs
from hatdfed.core.effort import Effort, ServerEffort
from hatdfed.core.energy.energy_model import EnergyPrices, EnergyRow
from hatdfed.core.links import BoolColumn, FloatColumn, FloatMatrix, Indices, LinkTable, Scalar, Topology
from hatdfed.core.regret import Regret
from hatdfed.core.timing.round_time import RoundTime
from hatdfed.randomness import stream

Values = NDArray[np.float64]

STRETCH = 10  # rounds that a simulated server is there or away at a time

# Numbers of a sketch. A prime, so that layers whose sizes are powers of two spread evenly over them. A length is
# estimated with a relative standard error of 1/√(2 · SKETCH_SIZE), a distance over a length with 1/√SKETCH_SIZE.
SKETCH_SIZE = 509

Sketch = NDArray[np.float32]  # [SKETCH_SIZE] a linear map of a model that keeps lengths nearly


class Away(StrEnum):
    """Why a server takes no part in a round."""

    CHURN = "churn"
    TRACE = "trace"  # its trace of availability says so
    BATTERY = "battery"  # it has too little charge
    ABSENT = "absent"  # a real machine that was not there


class Presence(NamedTuple):
    """What is known of the servers before a round's links are drawn."""

    active: NDArray[np.bool_]  # [N] who takes part
    reachable: BoolColumn  # [E] which of the links that are considered the network can carry
    reasons: Mapping[int, Away] = MappingProxyType({})  # why simulated servers do not

    @property
    def away(self) -> dict[int, Away]:
        """Who takes no part, and why."""
        return {i: self.reasons.get(i, Away.ABSENT) for i in np.flatnonzero(~self.active).tolist()}


def is_present(seed: int, t: int, server: int, churn: float) -> bool:
    """Whether a simulated server takes part in round t; `churn` is the chance to be away for a stretch of rounds."""
    return churn == 0 or float(stream(seed, "away", t // STRETCH, server).random()) >= churn


def present(seed: int, t: int, num_servers: int, churn: float) -> NDArray[np.bool_]:  # -> [N]
    """Draw which servers are present in round t, given the chance of being away."""
    if churn == 0:
        return np.ones(num_servers, dtype=bool)
    return _present(seed, t // STRETCH, num_servers, churn).copy()


@lru_cache(maxsize=4)  # a stretch is asked for many times
def _present(seed: int, stretch: int, num_servers: int, churn: float) -> NDArray[np.bool_]:
    return np.array([is_present(seed, stretch * STRETCH, server, churn) for server in range(num_servers)])


class LinkDraw(NamedTuple):
    """The links of one round and the probabilities with which they were drawn."""

    topology: Topology
    links: LinkTable  # that could be drawn from; every other link has probability 0
    propensity: FloatColumn  # [E] read-only, from the moment before rounding
    mixing: FloatColumn | None = None  # [E] weight of each received model by plan; the receiver's own has the rest
    host: int | None = None  # parameter server through which all models go; None: every link carries one

    @property
    def num_messages(self) -> int:
        """How many models are sent: one along each link, or those to and from the parameter server."""
        if self.host is None:
            return self.topology.num_links
        return int((self.topology.pairs == self.host).any(axis=1).sum())

    def carries_message(self, receiver: int, sender: int) -> bool:
        """Whether a model is sent along a drawn link, and not by way of the parameter server."""
        return self.host is None or self.host in (receiver, sender)

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

    @property
    def own_mixing(self) -> Values | None:
        """[N] weight of each server's own model by plan."""
        return None if self.mixing is None else 1 - self.links.by_receiver(self.mixing).sum(axis=1)

    @property
    def pair_mixing(self) -> Values | None:
        """[L] weight of each model that is sent, by plan, in the order of the topology's pairs."""
        return None if self.mixing is None else self.mixing[self.places]

    def find_mixing_row(self, receiver: int) -> dict[int, float] | None:
        """The planned weights of one server's own model and of those that it receives, by server."""
        if self.mixing is None:
            return None
        senders = np.array(self.topology.senders(receiver), dtype=np.int64)
        weights = self.mixing[self.links.places(np.full_like(senders, receiver), senders)]
        own = 1 - float(self.links.by_receiver(self.mixing)[receiver].sum())
        return {receiver: own, **dict(zip(senders.tolist(), weights.tolist(), strict=True))}

    @property
    def mixing_matrix(self) -> FloatMatrix | None:
        """[N, N] all planned weights, row receives; every row sums to 1."""
        if self.mixing is None or self.own_mixing is None:
            return None
        matrix = self.links.to_dense(self.mixing)
        np.fill_diagonal(matrix, self.own_mixing)
        return matrix


class RoundPlan(NamedTuple):
    """What the coordinator broadcasts."""

    t: int
    draw: LinkDraw
    presence: Presence | None = None  # who was there when it was drawn; None: everybody
    effort: Effort | None = None  # None: everybody trains on new data, as in the paper
    busy: Values | None = None  # [N] seconds until servers can begin, in a simulation with a deadline; None: 0
    begins_at: float = 0.0  # simulated seconds since the run began

    def effort_of(self, server: int) -> ServerEffort | None:
        """What one server is to do; None: as in the paper."""
        return None if self.effort is None else self.effort.of(server)


class ServerReport(NamedTuple):
    """What one server tells the coordinator after a round: about itself, and about each model that it merged."""

    accuracy: float  # of the merged model on validation data, a fraction
    num_samples: int  # trained on in this round
    senders: Indices  # [n] whose models were merged: the server itself, and those whose models arrived
    importance: Values  # [n] weight that each model got in the merge
    energy: tuple[EnergyRow, ...]  # what this server and its devices spent
    scores: Mapping[str, Values] = {}  # [n] what the method's judge thought of each model: "loss", "similarity", …
    sketch: Sketch | None = None  # of its merged model, where the models lie apart
    training_loss: float | None = None  # mean over its steps; None: it did not train, or nobody may know
    validation_loss: float | None = None  # of the merged model on validation data, mean over samples; None: unknown
    metrics: Mapping[str, float | None] = {}  # of the merged model on validation data; None: not defined


class Worked(Protocol):
    """A server's work in a round, as energy is computed from it."""

    @property
    def num_samples(self) -> int:
        """That it trained on."""

    @property
    def devices_online(self) -> int:
        """That sent data."""

    @property
    def num_sent(self) -> int:
        """Samples that devices sent."""


class LinkUse(NamedTuple):
    """What a server sent to one receiver."""

    share: float  # of a float32 model
    again: float = 0.0  # of it: what had been sent before
    hops: int = 1  # 2 through a relay


class WorkDone(NamedTuple):
    """A server's work in a round as three numbers."""

    num_samples: int
    devices_online: int
    num_sent: int


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
    compression: float | Mapping[int, LinkUse],
    sketch: Sketch | None = None,
    training_loss: float | None = None,
    validation_loss: float | None = None,
    metrics: Mapping[str, float | None] = MappingProxyType({}),
) -> ServerReport:
    """The report of `server` about itself and the models that it merged, those of `senders`.

    `compression` is the share of a float32 model that it sent to all receivers, or what it sent to each.
    """
    energy = _energy_spent(prices, plan, work, server, compression)
    losses = (_finite_or_none(training_loss), _finite_or_none(validation_loss))
    return ServerReport(accuracy, work.num_samples, senders, importance, energy, scores, sketch, *losses, metrics)


def _finite_or_none(loss: float | None) -> float | None:
    return loss if loss is not None and math.isfinite(loss) else None


def _energy_spent(
    prices: EnergyPrices, plan: RoundPlan, work: Worked, server: int, compression: float | Mapping[int, LinkUse]
) -> tuple[EnergyRow, ...]:
    """Uploads to the server, its training, and every model it sent, whether or not it was accepted."""
    draw, t = plan.draw, plan.t
    if isinstance(compression, float | int):
        whole, nothing = LinkUse(compression), LinkUse(0.0)
        use = [(i, whole if draw.carries_message(i, server) else nothing) for i in draw.topology.receivers(server)]
    else:
        use = [(i, compression[i]) for i in draw.topology.receivers(server)]
    return (
        prices.upload(t, server, work.devices_online, work.num_sent),
        prices.training(t, server, work.num_samples, plan.effort_of(server)),
        *[prices.link(t, i, server, compression=share, again=again, hops=hops) for i, (share, again, hops) in use],
    )


@dataclass(frozen=True, eq=False)
class RoundReport:
    """The reports of all servers; None where none came."""

    servers: tuple[ServerReport | None, ...]
    consensus_distance: float | None = None  # of the merged models, relative; None: unknown
    unused_energy: tuple[EnergyRow, ...] = ()  # of servers whose reports came and are not used
    upkeep_energy: tuple[EnergyRow, ...] = ()  # that no server reports (`Upkeep`)

    @cached_property
    def accuracy(self) -> Values:
        """[N], nan where no report came."""
        return np.array([np.nan if report is None else report.accuracy for report in self.servers])

    @property
    def training_loss(self) -> float | None:
        """Mean over the servers that tell it; None where nobody does."""
        return _mean_of_known(report.training_loss for report in self.servers if report is not None)

    @property
    def validation_loss(self) -> float | None:
        """Mean over the servers that tell it; None where nobody does."""
        return _mean_of_known(report.validation_loss for report in self.servers if report is not None)

    @property
    def metrics(self) -> dict[str, float | None]:
        """By name the mean over the servers that tell it; None where nobody does."""
        told = [report.metrics for report in self.servers if report is not None]
        names = dict.fromkeys(chain.from_iterable(told))
        return {name: _mean_of_known(each.get(name) for each in told) for name in names}

    @cached_property
    def reported(self) -> NDArray[np.bool_]:
        """[N] whose report came."""
        return np.array([report is not None for report in self.servers])

    @property
    def energy(self) -> tuple[EnergyRow, ...]:
        """All ledger rows of the round."""
        return (*self.told_energy, *self.unused_energy, *self.upkeep_energy)

    @property
    def told_energy(self) -> tuple[EnergyRow, ...]:
        """Those of the reports that are used."""
        return tuple(chain.from_iterable(report.energy for report in self.servers if report is not None))

    @cached_property
    def num_samples(self) -> NDArray[np.int64]:
        """[N] that servers trained on, 0 where no report came."""
        return np.array([0 if report is None else report.num_samples for report in self.servers])

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


def _mean_of_known(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    if not known:
        return None
    try:
        return math.fsum(known) / len(known)
    except OverflowError:  # whoever reports may claim numbers whose sum is none
        return math.fsum(value / len(known) for value in known)


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


def estimate_consensus_distance(sketches: Sequence[Sketch | None]) -> float | None:
    """The mean of ‖x_i − x̄‖ over servers, relative to ‖x̄‖, from the sketches of all that took part.

    Models are those after the merge, as servers store and evaluate them; under push-sum these are the de-biased ones.
    Sketches are linear, so their mean is the sketch of the mean model. `hatdfed.server.consensus` makes them, and
    computes the distance itself where all models lie in one place. None where a sketch is missing or not finite, or
    where the mean model is 0.
    """
    known = [sketch for sketch in sketches if sketch is not None and np.isfinite(sketch).all()]
    if not known or len(known) < len(sketches):
        return None
    models = np.stack(known).astype(np.float64)
    mean = models.mean(axis=0)
    length = np.linalg.norm(mean)
    return float(np.linalg.norm(models - mean, axis=1).mean() / length) if length > 0 else None


class Caught(NamedTuple):
    """A server whose report is false: it has no links from the next round on."""

    server: int
    round: int
    reason: str  # a sentence


class Bill(NamedTuple):
    """What the joules that came from the grid in a round stand for."""

    carbon_grams: float | None  # None: nobody knows how the grid's power is made
    cost: float | None  # in the currency of the tariff; None: nobody knows it


class RoundRecord(NamedTuple):
    """Everything worth keeping of one round."""

    t: int
    draw: LinkDraw
    report: RoundReport
    utility: FloatColumn  # [E] u of every link that is considered, drawn or not
    regret: Regret
    beliefs: Beliefs | None = None  # of the policy after the round, if it has any
    caught: tuple[Caught, ...] = ()  # whose report of this round is false
    away: Mapping[int, Away] = MappingProxyType({})  # who took no part, and why
    charge: Values | None = None  # [N] of the batteries after the round, in joules; None: everybody is on mains
    bill: Bill | None = None  # None: nobody asked
    time: RoundTime | None = None  # None: nobody knows how fast the machines are
    ages: FloatColumn | None = None  # [E] seconds since a sender finished its model, in an asynchronous run
