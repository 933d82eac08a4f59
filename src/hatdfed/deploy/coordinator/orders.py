"""Plans as what each edge is told, and what edges tell as reports that the coordinator believes.

An edge hears only of its own links. A report is untrusted: numbers out of range are refused before anything learns from
them. Energy is not reported at all: the coordinator prices what was done by its own list.
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

import numpy as np

from hatdfed.core.consensus import SKETCH_SIZE, Sketch
from hatdfed.core.energy.prices import EnergyPrices
from hatdfed.core.energy.spending import energy_spent
from hatdfed.core.round import RoundPlan, ServerReport
from hatdfed.deploy.coordinator.membership import EdgeMember, Membership
from hatdfed.deploy.protocol import hatdfed_pb2 as pb
from hatdfed.errors import WireError

_MOST_SAMPLES = 10**9
_MOST_SHARE = 16.0  # of a model to one receiver: retries included, nobody sends more
_MOST_SCORES = 8
_ROUNDING = 1e-3  # weights are float32 and sum to 1 nearly
_MOST_WORDS = 32
_WORD = re.compile(r"[a-z][a-z-]{0,31}")  # what scores and reasons of refusal are called


def round_orders(plan: RoundPlan, membership: Membership, seconds: float) -> dict[int, pb.RoundOrder]:
    """What each server that takes part is told."""
    orders = {}
    for member in membership.members[: plan.draw.topology.num_servers]:  # whoever joined since has no part in it
        if plan.presence is None or plan.presence.active[member.index]:
            orders[member.index] = _order(plan, membership, member, seconds)
    return orders


def _order(plan: RoundPlan, membership: Membership, member: EdgeMember, seconds: float) -> pb.RoundOrder:
    topology, i = plan.draw.topology, member.index
    mixing = None if plan.draw.mixing is None else plan.draw.mixing[i]
    receivers = [membership.at(j) for j in topology.receivers(i)]
    senders = [membership.at(j) for j in topology.senders(i)]
    return pb.RoundOrder(
        round=plan.t,
        seconds=seconds,
        # A sender dials its receiver if it can; else the receiver dials.
        receivers=[neighbour(o, dial=membership.can_dial(member, o)) for o in receivers if o],
        senders=[
            neighbour(
                o, dial=not membership.can_dial(o, member), mixing=math.nan if mixing is None else mixing[o.index]
            )
            for o in senders
            if o
        ],
        own_mixing=math.nan if mixing is None else mixing[i],
    )


def neighbour(member: EdgeMember, *, dial: bool, mixing: float = math.nan) -> pb.Neighbour:
    """A member as another one sees it."""
    return pb.Neighbour(index=member.index, name=member.name, address=member.address, dial=dial, mixing=mixing)


class Worked(NamedTuple):
    """What a server says it did with its devices' data."""

    num_samples: int
    devices_online: int


def server_report(outcome: pb.Outcome, plan: RoundPlan, prices: EnergyPrices, server: int) -> ServerReport:
    """What the coordinator believes of an outcome; raises `WireError` for what it does not."""
    _check(outcome, plan, server)
    names = sorted({name for slot in outcome.slots for name in slot.scores})
    scores = {name: np.array([slot.scores.get(name, math.nan) for slot in outcome.slots]) for name in names}
    worked = Worked(outcome.num_samples, outcome.devices_online)
    told = {sent.receiver: sent.share for sent in outcome.sent}
    shares = {receiver: told.get(receiver, 0.0) for receiver in plan.draw.topology.receivers(server)}
    energy = energy_spent(prices, plan, worked, server=server, compression=shares)
    return ServerReport(
        accuracy=outcome.accuracy,
        num_samples=outcome.num_samples,
        senders=np.array([slot.server for slot in outcome.slots]),
        importance=np.array([slot.importance for slot in outcome.slots]),
        energy=energy,
        scores={name: np.where(np.isfinite(score), score, np.nan) for name, score in scores.items()},
        sketch=_sketch(outcome),
    )


def _sketch(outcome: pb.Outcome) -> Sketch | None:
    """Of the edge's model; None where it sent none, or something that is none. Nothing is learned from it."""
    numbers = np.array(outcome.sketch, dtype=np.float32)
    return numbers if numbers.shape == (SKETCH_SIZE,) and bool(np.isfinite(numbers).all()) else None


def _check(outcome: pb.Outcome, plan: RoundPlan, server: int) -> None:
    senders, receivers = set(plan.draw.topology.senders(server)), set(plan.draw.topology.receivers(server))
    servers = [slot.server for slot in outcome.slots]
    numbers = [outcome.accuracy, *(slot.importance for slot in outcome.slots), *(sent.share for sent in outcome.sent)]
    if not 0 <= outcome.accuracy <= 1:
        raise WireError("bad-report", f"An accuracy of {outcome.accuracy} was reported; it lies between 0 and 1.")
    if not 0 <= outcome.num_samples <= _MOST_SAMPLES or not 0 <= outcome.devices_online <= _MOST_SAMPLES:
        raise WireError("bad-report", "A report counts samples or devices that cannot be.")
    if not all(map(math.isfinite, numbers)):
        raise WireError("bad-report", "A report holds a number that is none.")
    if len(set(servers)) != len(servers) or servers[:1] != [server] or not set(servers[1:]) <= senders:
        raise WireError("bad-report", "A report names models that were not to be sent to this server.")
    if not {sent.receiver for sent in outcome.sent} <= receivers or any(
        not 0 <= sent.share <= _MOST_SHARE for sent in outcome.sent
    ):
        raise WireError("bad-report", "A report names links that were not drawn, or more bytes than can be.")
    if not all(0 <= slot.importance <= 1 + _ROUNDING for slot in outcome.slots):
        raise WireError("bad-report", "A report gives a model a weight that lies not between 0 and 1.")
    names = {name for slot in outcome.slots for name in slot.scores}
    if len(names) > _MOST_SCORES or not all(map(_WORD.fullmatch, names)):
        raise WireError("bad-report", "A report holds scores that there are not.")


def refusals(outcome: pb.Outcome) -> dict[str, int]:
    """What an edge says that it refused, as far as that can be."""
    words = {word: count for word, count in outcome.refused.items() if _WORD.fullmatch(word) and 0 < count <= 10**6}
    return dict(list(words.items())[:_MOST_WORDS])
