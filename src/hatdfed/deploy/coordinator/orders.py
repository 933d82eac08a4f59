"""Translates plans into orders for each edge, and checks what edges report.

An edge is told only of its own links. A report is untrusted: numbers out of range are refused before anything learns
from them. Edges do not report energy: the coordinator computes it from what was done and its own price list.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from hatdfed.core.consensus import SKETCH_SIZE, Sketch
from hatdfed.core.energy.prices import EnergyPrices
from hatdfed.core.round import RoundPlan, ServerReport, WorkDone, make_server_report
from hatdfed.deploy.coordinator.membership import EdgeMember, Membership
from hatdfed.deploy.protocol import hatdfed_pb2 as pb
from hatdfed.errors import WireError

_MAX_SAMPLES = 10**9
_MAX_SENT_SHARE = 16.0  # of a model, sent to one receiver, retries included
_MAX_SCORES = 8
_ROUNDING = 1e-3  # weights are float32 and sum only nearly to 1
_MAX_WORDS = 32
_WORD = re.compile(r"[a-z][a-z-]{0,31}")  # names of scores and reasons of refusal
_LAYOUT = re.compile(r"[0-9a-f]{1,64}")
_MAX_MODEL_SIZE = 10**12
_MAX_MESSAGE_SHARE = 4.0  # no codec makes a model longer than that


@dataclass(frozen=True)
class Manifest:
    """What the models of all edges have in common: the first edge defines it, all others must agree."""

    num_params: int
    bits_per_sample: int
    layout: str
    message_share: float


def read_manifest(prepared: pb.Prepared) -> Manifest | None:
    """Read an edge's description of its model; None if it is not plausible."""
    is_plausible = (
        0 < prepared.num_params <= _MAX_MODEL_SIZE
        and 0 < prepared.bits_per_sample <= _MAX_MODEL_SIZE
        and _LAYOUT.fullmatch(prepared.layout) is not None
        and 0 < prepared.message_share <= _MAX_MESSAGE_SHARE
        and 0 <= prepared.accuracy <= 1
    )
    if not is_plausible:
        return None
    return Manifest(prepared.num_params, prepared.bits_per_sample, prepared.layout, prepared.message_share)


def make_round_orders(plan: RoundPlan, membership: Membership, seconds: float) -> dict[int, pb.RoundOrder]:
    """Make the order of every server that takes part in a round."""
    orders = {}
    for member in membership.members[: plan.draw.topology.num_servers]:  # those that joined since take no part
        if plan.presence is None or plan.presence.active[member.index]:
            orders[member.index] = _make_round_order(plan, membership, member, seconds)
    return orders


def make_missing_order(epoch: int, t: int, servers: Iterable[int], silent: Iterable[int] = ()) -> pb.Order:
    """Make the order not to wait for some servers in round t.

    Those that are `silent` are there, but will no longer call the receiver of this order.
    """
    return pb.Order(epoch=epoch, missing=pb.Missing(round=t, servers=sorted(servers), silent=sorted(silent)))


def _make_round_order(plan: RoundPlan, membership: Membership, member: EdgeMember, seconds: float) -> pb.RoundOrder:
    topology, i = plan.draw.topology, member.index
    mixing = None if plan.draw.mixing is None else plan.draw.mixing[i]
    receivers = [membership.get(j) for j in topology.receivers(i)]
    senders = [membership.get(j) for j in topology.senders(i)]
    return pb.RoundOrder(
        round=plan.t,
        seconds=seconds,
        # A sender dials its receiver if it can; else the receiver dials.
        receivers=[describe_neighbour(o, dial=membership.can_dial(member, o)) for o in receivers if o],
        senders=[
            describe_neighbour(
                o, dial=not membership.can_dial(o, member), mixing=math.nan if mixing is None else mixing[o.index]
            )
            for o in senders
            if o
        ],
        own_mixing=math.nan if mixing is None else mixing[i],
    )


def describe_neighbour(member: EdgeMember, *, dial: bool, mixing: float = math.nan) -> pb.Neighbour:
    """Describe a member to another edge."""
    return pb.Neighbour(index=member.index, name=member.name, address=member.address, dial=dial, mixing=mixing)


def read_report(outcome: pb.Outcome, plan: RoundPlan, prices: EnergyPrices, server: int) -> ServerReport:
    """Check an outcome and turn it into a report; raises `WireError` if it is refused."""
    _check(outcome, plan, server)
    names = sorted({name for slot in outcome.slots for name in slot.scores})
    scores = {name: np.array([slot.scores.get(name, math.nan) for slot in outcome.slots]) for name in names}
    reported = {sent.receiver: sent.share for sent in outcome.sent}
    shares = {receiver: reported.get(receiver, 0.0) for receiver in plan.draw.topology.receivers(server)}
    return make_server_report(
        plan,
        prices,
        server,
        WorkDone(outcome.num_samples, outcome.devices_online),
        accuracy=outcome.accuracy,
        senders=np.array([slot.server for slot in outcome.slots]),
        importance=np.array([slot.importance for slot in outcome.slots]),
        scores={name: np.where(np.isfinite(score), score, np.nan) for name, score in scores.items()},
        compression=shares,
        sketch=_read_sketch(outcome),
    )


def _read_sketch(outcome: pb.Outcome) -> Sketch | None:
    """Read the sketch of the edge's model; None if it sent none or a malformed one. Nothing is learned from it."""
    numbers = np.array(outcome.sketch, dtype=np.float32)
    return numbers if numbers.shape == (SKETCH_SIZE,) and bool(np.isfinite(numbers).all()) else None


def _check(outcome: pb.Outcome, plan: RoundPlan, server: int) -> None:
    senders, receivers = set(plan.draw.topology.senders(server)), set(plan.draw.topology.receivers(server))
    servers = [slot.server for slot in outcome.slots]
    numbers = [outcome.accuracy, *(slot.importance for slot in outcome.slots), *(sent.share for sent in outcome.sent)]
    if not 0 <= outcome.accuracy <= 1:
        raise WireError("bad-report", f"An accuracy of {outcome.accuracy} was reported; it lies between 0 and 1.")
    if not 0 <= outcome.num_samples <= _MAX_SAMPLES or not 0 <= outcome.devices_online <= _MAX_SAMPLES:
        raise WireError("bad-report", "A report counts samples or devices out of range.")
    if not all(map(math.isfinite, numbers)):
        raise WireError("bad-report", "A report holds a number that is not finite.")
    if len(set(servers)) != len(servers) or servers[:1] != [server] or not set(servers[1:]) <= senders:
        raise WireError("bad-report", "A report names models that were not to be sent to this server.")
    if not {sent.receiver for sent in outcome.sent} <= receivers or any(
        not 0 <= sent.share <= _MAX_SENT_SHARE for sent in outcome.sent
    ):
        raise WireError("bad-report", "A report names links that were not drawn, or too many bytes.")
    if not all(0 <= slot.importance <= 1 + _ROUNDING for slot in outcome.slots):
        raise WireError("bad-report", "A report gives a model a weight outside 0 to 1.")
    names = {name for slot in outcome.slots for name in slot.scores}
    if len(names) > _MAX_SCORES or not all(map(_WORD.fullmatch, names)):
        raise WireError("bad-report", "A report holds too many scores, or one with a malformed name.")


def count_refusals(outcome: pb.Outcome) -> dict[str, int]:
    """Count what an edge reports to have refused, by reason; implausible entries are left out."""
    words = {word: count for word, count in outcome.refused.items() if _WORD.fullmatch(word) and 0 < count <= 10**6}
    return dict(list(words.items())[:_MAX_WORDS])
