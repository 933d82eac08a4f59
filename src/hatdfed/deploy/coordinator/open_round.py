"""The round that is being played: its orders, the reports on it, and who need not wait for whom.

An edge is told only of its own links. A report is untrusted: numbers out of range are refused before anything learns
from them. The coordinator computes energy from what was done and its own price list; what edges have measured is kept
beside it, and charged where the settings say so.
"""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping

import numpy as np

from hatdfed.core.energy.energy_model import Cause, EnergyPrices
from hatdfed.core.energy.measured import MEASURED_CAUSES, MOST_JOULES, Metered, add_measured
from hatdfed.core.metrics import MOST_METRICS
from hatdfed.core.refusals import OTHER, WORDS
from hatdfed.core.report_check import ReportLimits, find_breaches
from hatdfed.core.round import (
    SKETCH_SIZE,
    LinkUse,
    RoundPlan,
    RoundReport,
    ServerReport,
    Sketch,
    WorkDone,
    estimate_consensus_distance,
    make_server_report,
)
from hatdfed.deploy.coordinator.conduct import Refusals, RoundEvidence
from hatdfed.deploy.coordinator.membership import EdgeMember, Membership, Route, describe_neighbour
from hatdfed.deploy.protocol import hatdfed_pb2 as pb
from hatdfed.errors import WireError
from hatdfed.meters.base import ESTIMATE, SOURCES

BAD_REPORT = "bad-report"
BAD_FINAL = "bad-final"
_MAX_SCORES = 8
_MAX_REFUSALS = 10**6  # of one kind, in one report
_MAX_NAMED = 10**4  # entries about other edges, in one report
_MAX_WORDS = 1000  # reasons of refusal, in one report; there are far fewer, but a later version may know more
_WORD = re.compile(r"[a-z][a-z-]{0,31}")  # names of scores


class AbandonedCalls:
    """Servers that are alive but have given up calling some of their neighbours in the open round."""

    def __init__(self) -> None:
        self._callers: dict[int, set[int]] = {}  # by the server that is no longer called

    def note(self, plan: RoundPlan, caller: int, found: pb.Reachable) -> list[int]:
        """Note whom `caller` no longer calls and return them; other rounds and servers without a link are ignored."""
        topology = plan.draw.topology
        if found.round != plan.t or caller >= topology.num_servers:  # such as one that has joined since
            return []
        called = set(found.lost) & {*topology.receivers(caller), *topology.senders(caller)}
        for index in called:
            self._callers.setdefault(index, set()).add(caller)
        return sorted(called)

    def callers_of(self, index: int) -> set[int]:
        """Return the servers that no longer call this one."""
        return self._callers.get(index, set())


class OpenRound:
    """Collects the reports of one round at a time."""

    def __init__(self) -> None:
        self.plan: RoundPlan | None = None
        self.opened_at = 0.0  # on the monotonic clock
        self.refused: Counter[str] = Counter()
        self.gone: set[int] = set()  # servers that all edges were told not to wait for
        self.returned: set[int] = set()  # servers that came back in this round, without what they had received
        self.abandoned = AbandonedCalls()
        self._limits = ReportLimits()
        self._prices: EnergyPrices | None = None
        self._relayed: dict[int, set[int]] = {}  # by sender: its receivers that it calls through the relay
        self._refusals: dict[int, Refusals] = {}  # by the server that reported them
        self._reports: dict[int, ServerReport] = {}
        self._impossible: dict[int, ServerReport] = {}  # reports that cannot be true
        self._rejected: set[int] = set()  # servers whose report was not plausible
        self._expected: set[int] = set()
        self._changed = asyncio.Event()

    @property
    def waiting_for(self) -> list[int]:
        """The servers whose report is missing."""
        return sorted(self._expected - self.done)

    @property
    def done(self) -> set[int]:
        """The servers that have reported, plausibly or not: they will send no more models in this round."""
        return self._reports.keys() | self._rejected

    def open(
        self, plan: RoundPlan, expected: set[int], prices: EnergyPrices, limits: ReportLimits | None = None
    ) -> None:
        """Begin a round."""
        self.plan, self._expected, self._prices = plan, expected, prices
        self.opened_at = time.monotonic()
        self._limits, self._refusals = limits or ReportLimits(), {}
        self._reports, self._impossible, self._rejected = {}, {}, set()
        self.gone, self.returned = set(), set()
        self.abandoned, self._relayed = AbandonedCalls(), {}
        self._changed.set()

    def note_relayed(self, orders: Mapping[int, pb.RoundOrder]) -> None:
        """Note which links go through the relay: everything that is sent along them is sent twice."""
        for server, order in orders.items():
            relayed = {receiver.index for receiver in order.receivers if receiver.relayed}
            self._relayed.setdefault(server, set()).update(relayed)

    def take(self, server: int, outcome: pb.Outcome) -> pb.Received:
        """Take a server's report, once; everything else is refused and counted."""
        try:
            self._take(server, outcome)
        except WireError as error:
            self.refused[error.reason] += 1
            return pb.Received(accepted=False, reason=error.reason)
        finally:
            self._changed.set()
        return pb.Received(accepted=True)

    def close(self) -> RoundReport:
        """End the round and return its reports, also those that cannot be true: the coordinator finds these, too."""
        plan, prices = self.plan, self._prices
        if plan is None or prices is None:
            raise RuntimeError("no round is open")
        self.plan = None
        distance = estimate_consensus_distance([report.sketch for report in self._reports.values()])
        told = self._impossible | self._reports
        return RoundReport(tuple(told.get(server) for server in range(prices.num_servers)), distance)

    def make_evidence(self, membership: Membership) -> RoundEvidence:
        """Describe what the open round has shown of its members."""
        if self.plan is None:
            raise RuntimeError("no round is open")
        names = [member.name for member in membership.members]
        known = set(names)
        receivers: dict[str, set[str]] = {}
        for receiver, sender in self.plan.draw.topology.pairs.tolist():
            if receiver in self._reports:
                receivers.setdefault(names[sender], set()).add(names[receiver])
        refusals = {
            names[server]: {name: reasons for name, reasons in refused.items() if name in known - {names[server]}}
            for server, refused in self._refusals.items()
        }
        return RoundEvidence(self.plan.t, {names[index] for index in self._expected}, refusals, receivers)

    def undelivered(self) -> list[tuple[int, int]]:
        """Return pairs of a receiver that has reported and a sender whose model did not reach it."""
        if self.plan is None:
            return []
        senders = {server: self.plan.draw.topology.senders(server) for server in self._reports}
        return [(i, j) for i, those in senders.items() for j in those if j not in self._reports[i].senders]

    def notify(self) -> None:
        """Wake up whoever waits for a change."""
        self._changed.set()

    async def wait_for_change(self, seconds: float) -> None:
        """Wait until something has changed, or for so long."""
        self._changed.clear()
        try:
            await asyncio.wait_for(self._changed.wait(), seconds)
        except TimeoutError:
            return

    def _take(self, server: int, outcome: pb.Outcome) -> None:
        if self.plan is None or self._prices is None or outcome.round < self.plan.t:
            raise WireError("late", f"A report of round {outcome.round} came after that round had closed.")
        if outcome.round > self.plan.t:
            raise WireError("foreign", f"A report of round {outcome.round} came in round {self.plan.t}.")
        if server not in self._expected:
            raise WireError("foreign", "A report came from a server that does not take part in this round.")
        if server in self.done:  # also after a bad one: each costs the event loop time and its neighbours an order
            raise WireError("duplicate", "A second report came in the same round.")
        try:
            _check_outcome(outcome, self.plan, server)
            relayed = self._relayed.get(server, set())
            report = _read_report(outcome, self.plan, self._prices, server, relayed)
            if reason := find_breaches({server: report}, self.plan, self._prices, self._limits).get(server):
                self._impossible[server] = report
                raise WireError(BAD_REPORT, reason)
            self._reports[server] = report
            self._refusals[server] = read_refusals(outcome)
        except WireError:
            self._rejected.add(server)
            raise


def find_waiting(
    plan: RoundPlan, membership: Membership, member: EdgeMember, outcome: pb.Outcome, returned: set[int]
) -> set[int]:
    """Return the servers that still wait for `member`, which is done: to receive its model, or to have theirs fetched.

    `returned` are those that came back during the round, without what they had received.
    """
    topology, i = plan.draw.topology, member.index
    merged, delivered = {slot.server for slot in outcome.slots}, {s.receiver for s in outcome.sent if s.delivered}
    waiting = {j for j in topology.receivers(i) if j not in delivered or j in returned}
    for j in topology.senders(i):
        sender = membership.get(j)
        if sender is not None and (j not in merged or membership.choose_route(sender, member) is Route.PULL):
            waiting.add(j)
    return waiting


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
    mixing, effort = plan.draw.find_mixing_row(i), plan.effort_of(i)
    receivers = [membership.get(j) for j in topology.receivers(i)]
    senders = [membership.get(j) for j in topology.senders(i)]
    order = pb.RoundOrder(
        round=plan.t,
        seconds=seconds,
        receivers=[_describe_receiver(o, membership.choose_route(member, o)) for o in receivers if o],
        senders=[
            describe_neighbour(
                o,
                dial=membership.choose_route(o, member) is Route.PULL,
                mixing=math.nan if mixing is None else mixing[o.index],
            )
            for o in senders
            if o
        ],
        own_mixing=math.nan if mixing is None else mixing[i],
    )
    if effort is not None:
        order.passes, order.asks = effort.passes, effort.asks
    return order


def _describe_receiver(member: EdgeMember, route: Route) -> pb.Neighbour:
    return describe_neighbour(member, dial=route is not Route.PULL, relayed=route is Route.RELAY)


def _read_report(
    outcome: pb.Outcome, plan: RoundPlan, prices: EnergyPrices, server: int, relayed: set[int]
) -> ServerReport:
    """Turn an outcome that was checked into a report; `relayed` are the receivers that it calls through the relay."""
    names = sorted({name for slot in outcome.slots for name in slot.scores})
    scores = {name: np.array([slot.scores.get(name, math.nan) for slot in outcome.slots]) for name in names}
    reported = {sent.receiver: LinkUse(sent.share, sent.again) for sent in outcome.sent}
    receivers = plan.draw.topology.receivers(server)
    use = {i: reported.get(i, LinkUse(0.0))._replace(hops=1 + (i in relayed)) for i in receivers}
    report = make_server_report(
        plan,
        prices,
        server,
        WorkDone(
            outcome.num_samples,
            outcome.devices_online,
            outcome.num_sent if outcome.HasField("num_sent") else outcome.num_samples,
        ),
        accuracy=outcome.accuracy,
        senders=np.array([slot.server for slot in outcome.slots]),
        importance=np.array([slot.importance for slot in outcome.slots]),
        scores={name: np.where(np.isfinite(score), score, np.nan) for name, score in scores.items()},
        compression=use,
        sketch=_read_sketch(outcome),
        training_loss=outcome.training_loss if outcome.HasField("training_loss") else None,
        validation_loss=outcome.validation_loss if outcome.HasField("validation_loss") else None,
        metrics={name: value for name, value in outcome.metrics.items() if math.isfinite(value)},
    )
    metered, counts = _read_metered(outcome), prices.counts_measured
    if not metered:
        return report
    return report._replace(energy=add_measured(report.energy, metered, t=plan.t, server=server, counts=counts))


def _read_metered(outcome: pb.Outcome) -> dict[Cause, Metered]:
    """Read what the edge has measured, by cause; what can be no reading is left out."""
    names = {str(cause): cause for cause in MEASURED_CAUSES}
    return {
        names[each.cause]: Metered(each.joules, each.uncertainty, each.meter)
        for each in outcome.metered[: len(names)]
        if each.cause in names
        and 0 <= each.joules <= MOST_JOULES
        and 0 <= each.uncertainty <= MOST_JOULES
        and each.meter in SOURCES
        and each.meter != ESTIMATE
    }


def _read_sketch(outcome: pb.Outcome) -> Sketch | None:
    """Read the sketch of the edge's model; None if it sent none or a malformed one. Nothing is learned from it."""
    if len(outcome.sketch) != SKETCH_SIZE:
        return None
    numbers = np.array(outcome.sketch, dtype=np.float32)
    return numbers if bool(np.isfinite(numbers).all()) else None


def _check_outcome(outcome: pb.Outcome, plan: RoundPlan, server: int) -> None:
    """Refuse what is no report: malformed, or that of an edge whose round failed. It proves nothing against an edge."""
    receivers = set(plan.draw.topology.receivers(server))
    _check_lengths(outcome, len(plan.draw.topology.senders(server)), len(receivers))
    weights, sent = [slot.importance for slot in outcome.slots], outcome.sent
    if not all(map(math.isfinite, [outcome.accuracy, *weights, *(each.share for each in sent)])):
        raise WireError(BAD_REPORT, "A report holds a number that is not finite.")
    if [slot.server for slot in outcome.slots[:1]] != [server]:
        raise WireError(BAD_REPORT, "A report does not begin with the server's own model.")
    if not {each.receiver for each in sent} <= receivers:
        raise WireError(BAD_REPORT, "A report names links that were not drawn.")
    names = {name for slot in outcome.slots for name in slot.scores}
    if len(names) > _MAX_SCORES or not all(map(_WORD.fullmatch, names)):
        raise WireError(BAD_REPORT, "A report holds too many scores, or one with a malformed name.")


def _check_lengths(outcome: pb.Outcome, num_senders: int, num_receivers: int) -> None:
    """Refuse a report with more entries than there can be, before any are read: an entry may be two bytes long."""
    is_too_long = (
        len(outcome.slots) > 1 + num_senders
        or len(outcome.sent) > num_receivers
        or len(outcome.refused) > _MAX_WORDS
        or len(outcome.metrics) > MOST_METRICS
        or any(len(slot.scores) > _MAX_SCORES for slot in outcome.slots)
    )
    if is_too_long:
        raise WireError(BAD_REPORT, "A report holds more entries than this server has links.")


def count_refusals(outcome: pb.Outcome) -> Counter[str]:
    """Count what an edge reports to have refused, by reason; words that are none of ours count as `other`."""
    return _count_words(outcome.refused.items())


def read_refusals(outcome: pb.Outcome) -> Refusals:
    """Read whose messages an edge reports to have refused; the names are what it says."""
    counts: dict[str, list[tuple[str, int]]] = {}
    for refusal in outcome.refusals[:_MAX_NAMED]:
        counts.setdefault(refusal.name, []).append((refusal.reason, refusal.count))
    return {name: _count_words(those) for name, those in counts.items()}


def _count_words(counts: Iterable[tuple[str, int]]) -> Counter[str]:
    words: Counter[str] = Counter()
    for word, count in counts:
        words[word if word in WORDS else OTHER] += min(max(count, 0), _MAX_REFUSALS)
    return +words
