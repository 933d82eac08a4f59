"""The coordinator's view of its edges: takes their calls, sends them orders, and collects the reports of a round.

It decides nothing: plans come from the main loop, which waits for servers by `QuorumWait` and plays rounds here through
`RemoteFleet`.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Mapping

from hatdfed.core.energy.energy_model import EnergyPrices
from hatdfed.core.metrics import LONGEST_NAME, MOST_METRICS
from hatdfed.core.report_check import ReportLimits
from hatdfed.core.round import RoundPlan, RoundReport
from hatdfed.deploy import history
from hatdfed.deploy.coordinator.journal import Journal
from hatdfed.deploy.coordinator.membership import (
    STARTED_TWICE,
    EdgeMember,
    Manifest,
    Membership,
    NameTakenError,
    describe_neighbour,
    read_manifest,
    refuse_second_process,
)
from hatdfed.deploy.coordinator.open_round import (
    BAD_FINAL,
    BAD_REPORT,
    OpenRound,
    count_refusals,
    find_waiting,
    make_missing_order,
    make_round_orders,
)
from hatdfed.deploy.coordinator.participation import Participation
from hatdfed.deploy.coordinator.settings import DeploySettings
from hatdfed.deploy.failpoints import failpoint
from hatdfed.deploy.monitoring.time_by_kind import TimeByKind
from hatdfed.deploy.protocol import hatdfed_pb2 as pb

_log = logging.getLogger("hatdfed.deploy.coordinator")
_MOST_METRICS = 2 * MOST_METRICS  # of the settings and of the task together
_MAX_ORDERS = 1000  # that wait for one edge; an edge that reads none of them counts as gone
LOST = "its connection was lost"
END_OF_ORDERS = pb.Order(epoch=-1)  # of no start of any coordinator: ends a queue


class OrderQueues:
    """The queues of orders, at most one for each edge."""

    def __init__(self) -> None:
        self._queues: dict[int, asyncio.Queue[pb.Order]] = {}

    def open(self, index: int) -> asyncio.Queue[pb.Order]:
        """Open a new queue for an edge; its older one ends."""
        self._end(index)
        self._queues[index] = asyncio.Queue()
        return self._queues[index]

    def close(self, index: int, orders: asyncio.Queue[pb.Order]) -> bool:
        """Remove a queue; returns False if the edge has already opened another one."""
        if self._queues.get(index) is not orders:
            return False
        del self._queues[index]
        return True

    def put(self, index: int, order: pb.Order) -> bool:
        """Queue an order if the edge has a queue; returns False if the edge reads none, and ends its queue."""
        if (queue := self._queues.get(index)) is None:
            return True
        queue.put_nowait(order)
        if queue.qsize() <= _MAX_ORDERS:
            return True
        self._end(index)
        return False

    @property
    def watching(self) -> list[int]:
        """The edges that have a queue."""
        return list(self._queues)

    def _end(self, index: int) -> None:
        if (old := self._queues.pop(index, None)) is not None:
            old.put_nowait(END_OF_ORDERS)


class EdgeHub:
    """The members, the open round, and a queue of orders for every connected edge."""

    def __init__(
        self,
        journal: Journal,
        settings: DeploySettings,
        num_servers: int,
        epoch: int,
        next_round: int,
    ) -> None:
        self.epoch = epoch
        self.settings = settings
        self.membership = Membership(num_servers, settings.away_seconds)
        self.quorum = settings.quorum(num_servers)
        self.open_round = OpenRound()
        self.final: dict[int, pb.FinalFigures] = {}
        self.refused: Counter[str] = Counter()  # messages, as edges report them
        self.refused_calls: Counter[str] = Counter()
        self.participation = Participation(self.membership, journal, next_round)
        self.next_round = next_round
        self.closes_at: float | None = None  # the open round, on the monotonic clock
        self.waits_for = "servers"
        self.waits = TimeByKind("servers", "probes", "reports", "final")
        self.incomplete_rounds = 0  # that closed without a report, since the start
        self.waits_until: float | None = None  # when that ends at the latest; None: a pause, until servers are back
        self.stop_requested = asyncio.Event()
        self._journal = journal
        self._wants_final = False  # once all rounds are played
        self._without_final: set[int] = set()  # members whose final figures were refused
        self._queues = OrderQueues()
        self._last_order: pb.Order | None = None  # finish or stop, for edges that come back after it was sent
        self._changed = asyncio.Event()
        drained = journal.read_fact("drained") or []
        for name, accuracy in journal.read_members():
            member = self.membership.restore(name, accuracy, time.monotonic())
            member.is_drained = name in drained
            self.participation.restore(member)
        bounds = {"round_seconds": settings.round_seconds, "away_seconds": settings.away_seconds}
        history.note("start", history.COORDINATOR, epoch=epoch, round=next_round, **bounds)

    @property
    def manifest(self) -> Manifest | None:
        """What the models of all edges have in common; None before most have agreed."""
        return self.participation.manifest

    # Calls of edges.

    def admit(self, name: str, address: str, process: str = "") -> EdgeMember:
        """Admit an edge; a new member is committed before the edge is answered.

        Raises `NameTakenError` if another process has this name, and `MovedTooSoonError`.
        """
        now = time.monotonic()
        if (known := self.membership.find(name)) is None:
            self._journal.add_member(len(self.membership.members), name)
        elif known.index in self._queues.watching:
            try:
                refuse_second_process(self.membership, known, process, now)
            except NameTakenError as error:
                if error.is_sure:
                    self.count_refusal(STARTED_TWICE, name)
                raise
        return self.membership.admit(name, address, now, process)

    def mark_ready(self, member: EdgeMember, prepared: pb.Prepared) -> str | None:
        """Count an edge as ready for rounds; returns why not, if it is refused."""
        manifest = read_manifest(prepared)
        if manifest is None:
            return f"{member.name} describes a model that cannot exist."
        if prepared.round > self.next_round + 1:  # an edge of version 0.1: later ones go back by themselves
            return (
                f"{member.name} has played rounds up to {prepared.round - 1}, but this run was restored from a backup "
                f"and goes on with round {self.next_round}. Install this version of hatdfed there, or give the edge "
                "another --store, so that it starts with the model of a peer."
            )
        if (agreed := self.manifest) is not None and agreed != manifest:
            return f"{member.name} brings another model or other data than this run: {manifest}, wanted {agreed}."
        self._journal.set_first_accuracy(member.index, prepared.accuracy)
        member.accuracy, member.round, member.manifest = prepared.accuracy, prepared.round, manifest
        self.set_relayed(member, claimed=prepared.relayed)
        member.is_ready, member.lost_at, member.doing = True, -math.inf, "ready"
        self.mark_seen(member)
        _log.info("%s is ready as server %d", member.name, member.index, extra={"node": member.name})
        self.request_probes()
        if self.open_round.plan is not None:
            self._bring_up_to_date(self.open_round.plan, member)
        elif self._last_order is not None:
            self.send_order(member.index, self._last_order)
        self._notify()
        return None

    def set_relayed(self, member: EdgeMember, *, claimed: bool) -> None:
        """Note whether a member says that it waits for calls at the relay; without a relay it cannot."""
        member.is_relayed = claimed and self.settings.relay is not None

    def mark_seen(self, member: EdgeMember) -> None:
        """Note a sign of life."""
        member.last_seen, member.has_left = time.monotonic(), False

    def take_report(self, member: EdgeMember, outcome: pb.Outcome) -> pb.Received:
        """Take an edge's report of the open round."""
        self.mark_seen(member)
        answer = self.open_round.take(member.index, outcome)
        _note_report(member.index, outcome, answer)
        if answer.accepted:
            member.round, member.round_seconds = outcome.round + 1, time.monotonic() - self.open_round.opened_at
            self.refused += count_refusals(outcome)
        else:
            self.participation.conduct.count(member.name, answer.reason)
        if answer.accepted or answer.reason == BAD_REPORT:
            self._release_neighbours(member, outcome if answer.accepted else pb.Outcome())
            self._dismiss_if_drained(member)
            failpoint("after-first-report")
        return answer

    def mark_left(self, member: EdgeMember, why: str, *, for_good: bool = False) -> None:
        """Note that an edge has left, or that its connection was lost: then it may be back soon."""
        if member.is_ready:
            _log.info("%s has left: %s", member.name, why, extra={"node": member.name})
        # A connection may come back at once: the next round waits for it, as it does for servers that are silent.
        if member.is_ready and not for_good:
            member.lost_at = time.monotonic()
        member.is_ready, member.doing = False, why
        member.has_left |= for_good
        self._notify()

    def note_reachable(self, member: EdgeMember, found: pb.Reachable) -> str | None:
        """Note whom an edge could dial, and tell peers that it no longer calls in this round not to wait for it.

        Returns why not, if that is refused.
        """
        if max(map(len, (found.yes, found.no, found.lost))) > len(self.membership.members):
            self.count_refusal("too-long", member.name)
            return f"{member.name} reports on more servers than there are."
        self.membership.record_probes(member, found.yes, found.no)
        if (plan := self.open_round.plan) is not None:
            for index in self.open_round.abandoned.note(plan, member.index, found):
                self.send_order(index, make_missing_order(self.epoch, plan.t, (), [member.index]))
        self._notify()
        return None

    def open_orders(self, member: EdgeMember) -> asyncio.Queue[pb.Order]:
        """Open an edge's queue of orders; its older one ends."""
        return self._queues.open(member.index)

    def close_orders(
        self, member: EdgeMember, orders: asyncio.Queue[pb.Order], why: str = LOST, *, for_good: bool = False
    ) -> None:
        """Close the queue of a connection that has ended; if the edge has connected again since, it stays a member."""
        if self._queues.close(member.index, orders) or for_good:
            self.mark_left(member, why, for_good=for_good)

    def drain(self, member: EdgeMember) -> None:
        """Give this edge no new rounds, in this start and in later ones; it may finish the round it is in."""
        drained = {*(self._journal.read_fact("drained") or []), member.name}
        self._journal.write_fact("drained", sorted(drained))
        member.is_drained, member.doing = True, "drained"
        _log.info("%s is drained", member.name)
        if (active := int(self.membership.active_mask(time.monotonic()).sum())) < self.quorum:
            _log.warning("only %d servers are left; rounds wait until there are %d", active, self.quorum)
        if self.is_dismissed(member):
            self._dismiss_if_drained(member)
        self._notify()

    def is_dismissed(self, member: EdgeMember) -> bool:
        """Return whether a member was drained, and has finished the round that it was in."""
        is_playing = self.open_round.plan is not None and member.index in self.open_round.waiting_for
        return member.is_drained and not is_playing

    def undrain(self, member: EdgeMember) -> None:
        """Let a drained edge take part again, in this start and in later ones."""
        drained = {*(self._journal.read_fact("drained") or [])} - {member.name}
        self._journal.write_fact("drained", sorted(drained))
        member.is_drained = False
        member.doing = "ready" if member.is_ready else "may take part again"
        _log.info("%s is drained no more", member.name)
        self._notify()

    def take_final(self, member: EdgeMember, figures: pb.FinalFigures) -> str | None:
        """Take an edge's final figures; returns why not, if they are refused. Then they count as missing."""
        # Members in quarantine are asked, too: only they know in how many private rounds they trained.
        if not self._wants_final or not member.is_ready or member.is_drained:
            self.count_refusal("not-asked", member.name)
            return f"{member.name} was not asked for final figures."
        numbers = (figures.accuracy, figures.personal_accuracy, figures.validation_accuracy, figures.own_accuracy)
        is_plausible = all(0 <= number <= 1 for number in numbers) and _are_metrics(figures.metrics)
        if is_plausible:
            self.final[member.index] = figures
        else:
            self._without_final.add(member.index)
            self.refused[BAD_FINAL] += 1
            self.participation.conduct.count(member.name, BAD_FINAL)
        self._notify()
        return None if is_plausible else f"{member.name} reports final figures that lie outside 0 to 1."

    # Calls of the main loop.

    async def play(self, plan: RoundPlan, prices: EnergyPrices, limits: ReportLimits | None = None) -> RoundReport:
        """Announce a plan and collect reports until all have come, the missing edges are away, or time is up.

        `limits` is what one server can have done in a round, by the settings of the run.
        """
        expected = {i for i in range(prices.num_servers) if plan.presence is None or plan.presence.active[i]}
        self.next_round, self.closes_at = plan.t, time.monotonic() + self.settings.round_seconds
        self.open_round.open(plan, expected, prices, limits)
        history.note("open", history.COORDINATOR, round=plan.t, seconds=self.settings.round_seconds)
        self._send_round_orders(plan)
        while (awaited := self.open_round.waiting_for) and time.monotonic() < self.closes_at:
            gone = [index for index in awaited if not self._is_alive(index)]
            if len(gone) == len(awaited):
                break
            self._announce_gone(plan.t, gone)
            whom = ", ".join(m.name for i in awaited if (m := self.membership.get(i)))
            self.set_wait(f"reports of {whom}", self.closes_at, "reports")
            await self.open_round.wait_for_change(min(1.0, max(0.0, self.closes_at - time.monotonic())))
        if awaited := self.open_round.waiting_for:
            self._count_missed(awaited)
            names = [member.name for index in awaited if (member := self.membership.get(index))]
            _log.warning("round %d closes without %s", plan.t, ", ".join(names))
        self.closes_at = None
        self.set_wait("")
        for pair in self.open_round.undelivered():
            self.membership.forget_pair(*pair)
        self.participation.judge(self.open_round.make_evidence(self.membership), time.monotonic())
        report = self.open_round.close()
        if history.is_kept():
            history.note("close", history.COORDINATOR, round=plan.t, reported=report.reported.nonzero()[0].tolist())
        for member in self.membership.members:
            self._dismiss_if_drained(member)
        return report

    async def finish(self, seconds: float) -> None:
        """Ask all active edges for their final figures and wait for them."""
        self._last_order, self._wants_final = pb.Order(epoch=self.epoch, finish=pb.Nothing()), True
        self._send_to_all(self._last_order)
        end = time.monotonic() + seconds
        while (silent := self._names_without_final()) and time.monotonic() < end:
            self.set_wait("final figures of " + ", ".join(silent), end, "final")
            await self.wait_for_change(1.0)
        self.set_wait("")

    async def dismiss(self) -> None:
        """Tell all edges to end."""
        self._last_order = pb.Order(epoch=self.epoch, stop=pb.Nothing())
        self._send_to_all(self._last_order)
        await asyncio.sleep(0.5)  # so that the orders are sent

    # Orders.

    def send_order(self, index: int, order: pb.Order) -> None:
        """Queue an order for an edge, if it is connected."""
        if not self._queues.put(index, order) and (member := self.membership.get(index)) is not None:
            self.mark_left(member, "it reads no orders")

    def _send_round_orders(self, plan: RoundPlan, only: int | None = None) -> None:
        left = self.settings.round_seconds if self.closes_at is None else self.closes_at - time.monotonic()
        orders = make_round_orders(plan, self.membership, max(0.0, left))
        sent = {index: order for index, order in orders.items() if only in (None, index)}
        self.open_round.note_relayed(sent)  # the other edges keep to the orders that they have
        for index, order in sent.items():
            _note_announcement(self.epoch, index, order)
            self.send_order(index, pb.Order(epoch=self.epoch, round=order))
            failpoint("half-announced")

    def _send_to_all(self, order: pb.Order) -> None:
        for index in self._queues.watching:
            self.send_order(index, order)

    def _announce_gone(self, t: int, gone: list[int]) -> None:
        """Tell all edges not to wait for models of servers that are gone."""
        if new := set(gone) - self.open_round.gone:
            self.open_round.gone |= new
            self._send_to_all(make_missing_order(self.epoch, t, new))

    def _release_neighbours(self, member: EdgeMember, outcome: pb.Outcome) -> None:
        """Tell neighbours that still wait for a server that is done, to send or to fetch a model, not to."""
        if (plan := self.open_round.plan) is not None:
            for index in find_waiting(plan, self.membership, member, outcome, self.open_round.returned):
                self.send_order(index, make_missing_order(self.epoch, plan.t, {member.index}))

    def _bring_up_to_date(self, plan: RoundPlan, member: EdgeMember) -> None:
        """Send an edge that joins during a round its order, if it takes part, and whom not to wait for."""
        self.open_round.returned.add(member.index)
        self._send_round_orders(plan, only=member.index)
        silent = self.open_round.abandoned.callers_of(member.index)
        not_coming = self.open_round.gone | self.open_round.done
        self.send_order(member.index, make_missing_order(self.epoch, plan.t, not_coming, silent))

    def _dismiss_if_drained(self, member: EdgeMember) -> None:
        if member.is_drained:
            self.send_order(member.index, pb.Order(epoch=self.epoch, leave="drained by the coordinator's operator"))

    def count_refusal(self, reason: str, name: str = "") -> None:
        """Count a refused call, and for whom if that is a member."""
        self.refused_calls[reason] += 1
        if self.membership.find(name) is not None:
            self.participation.conduct.count(name, reason)

    def _count_missed(self, awaited: list[int]) -> None:
        self.incomplete_rounds += 1
        for index in awaited:
            if (member := self.membership.get(index)) is not None:
                member.missed_rounds += 1

    # Who is there.

    def _is_alive(self, index: int) -> bool:
        """Return whether a round still waits for this server; one that is away may come back, but is not waited for."""
        member = self.membership.get(index)
        return member is not None and self.membership.is_alive(member, time.monotonic())

    def _names_without_final(self) -> list[str]:
        now = time.monotonic()
        active = [member for member in self.membership.members if self.membership.is_active(member, now)]
        return [member.name for member in active if member.index not in self.final.keys() | self._without_final]

    def request_probes(self) -> None:
        """Have edges try to dial peers that they have no result for."""
        for member, others in self.membership.plan_probes(time.monotonic()):
            peers = [describe_neighbour(other, dial=True) for other in others]
            self.send_order(member.index, pb.Order(epoch=self.epoch, probe=pb.ProbeOrder(peers=peers)))

    def set_wait(self, what: str, until: float | None = None, kind: str = "") -> None:
        """Say in the status what the main loop waits for, and until when; nothing while it computes.

        `kind` is under what the time is counted in the metrics.
        """
        if what:
            self.waits.begin(kind)
        else:
            self.waits.end()
        if what != self.waits_for:
            history.note("wait", history.COORDINATOR, waits_for=what, until=until)
        self.waits_for, self.waits_until = what, until

    def _notify(self) -> None:
        self._changed.set()
        self.open_round.notify()

    async def wait_for_change(self, seconds: float) -> None:
        """Wait until members have changed, or for so long."""
        self._changed.clear()
        try:
            await asyncio.wait_for(self._changed.wait(), seconds)
        except TimeoutError:
            return


def _are_metrics(metrics: Mapping[str, float]) -> bool:
    """Whether these are figures under a few short names, not whatever an edge likes to have in a record."""
    return len(metrics) <= _MOST_METRICS and all(
        name.isidentifier() and len(name) <= LONGEST_NAME and math.isfinite(value) for name, value in metrics.items()
    )


def _note_announcement(epoch: int, index: int, order: pb.RoundOrder) -> None:
    if history.is_kept():
        links = [[index, each.index] for each in order.senders] + [[each.index, index] for each in order.receivers]
        history.note("announce", history.COORDINATOR, round=order.round, epoch=epoch, to=index, links=links)


def _note_report(index: int, outcome: pb.Outcome, answer: pb.Received) -> None:
    if history.is_kept():
        found = {"round": outcome.round, "server": index, "accepted": answer.accepted, "reason": answer.reason}
        merged, sent = [slot.server for slot in outcome.slots], {each.receiver: each.share for each in outcome.sent}
        history.note("report", history.COORDINATOR, **found, merged=merged, sent=sent)
