"""The coordinator's view of its edges: takes their calls, sends them orders, and collects the reports of a round.

It decides nothing: plans come from the main loop, which plays them here through `RemoteFleet`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter

from hatdfed.core.availability import Presence
from hatdfed.core.energy.prices import EnergyPrices
from hatdfed.core.round import RoundPlan, RoundReport
from hatdfed.deploy.coordinator.journal import Journal
from hatdfed.deploy.coordinator.membership import (
    STARTED_TWICE,
    EdgeMember,
    Membership,
    NameTakenError,
    refuse_second_process,
)
from hatdfed.deploy.coordinator.open_round import BAD_REPORT, OpenRound, still_waiting
from hatdfed.deploy.coordinator.orders import (
    Manifest,
    count_refusals,
    describe_neighbour,
    make_missing_order,
    make_round_orders,
    read_manifest,
)
from hatdfed.deploy.coordinator.settings import DeploySettings
from hatdfed.deploy.failpoints import failpoint
from hatdfed.deploy.protocol import hatdfed_pb2 as pb

_log = logging.getLogger("hatdfed.deploy.coordinator")
_PROBE_SECONDS = 10.0  # that a draw waits for answers about who reaches whom
_MAX_WORDS = 64  # kinds of refusals that are counted
_MAX_ORDERS = 1000  # that wait for one edge; an edge that reads none of them counts as gone
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
        self, journal: Journal, settings: DeploySettings, num_servers: int, epoch: int, next_round: int
    ) -> None:
        self.epoch = epoch
        self.settings = settings
        self.membership = Membership(num_servers, settings.away_seconds)
        self.open_round = OpenRound()
        self.final: dict[int, pb.FinalFigures] = {}
        self.refused: Counter[str] = Counter()
        self.next_round = next_round
        self.closes_at: float | None = None  # of the open round, on the monotonic clock
        self.waits_for = "servers"
        self.stop_requested = asyncio.Event()
        self._journal = journal
        self._queues = OrderQueues()
        self._last_order: pb.Order | None = None  # finish or stop, for edges that come back after it was sent
        self._changed = asyncio.Event()
        drained = journal.read_fact("drained") or []
        for name, accuracy in journal.read_members():
            self.membership.restore(name, accuracy, time.monotonic()).is_drained = name in drained

    @property
    def manifest(self) -> Manifest | None:
        """What the models of all edges have in common; None before the first edge is ready."""
        found = self._journal.read_fact("manifest")
        return None if found is None else Manifest(**found)

    # Calls of edges.

    def admit(self, name: str, address: str, process: str = "") -> EdgeMember:
        """Admit an edge; a new member is committed before the edge is answered.

        Raises `NameTakenError` if another process has this name.
        """
        now = time.monotonic()
        if (known := self.membership.find(name)) is None:
            self._journal.add_member(len(self.membership.members), name)
        elif known.index in self._queues.watching:
            try:
                refuse_second_process(self.membership, known, process, now)
            except NameTakenError as error:
                self.refused.update([STARTED_TWICE] * error.is_sure)
                raise
        return self.membership.admit(name, address, now, process)

    def mark_ready(self, member: EdgeMember, prepared: pb.Prepared) -> str | None:
        """Count an edge as ready for rounds; returns why not, if it is refused."""
        manifest = read_manifest(prepared)
        if manifest is None:
            return f"{member.name} describes a model that cannot exist."
        if (agreed := self.manifest) is None:
            self._journal.write_fact("manifest", vars(manifest))
        elif agreed != manifest:
            return f"{member.name} brings another model or other data than this run: {manifest}, wanted {agreed}."
        self._journal.set_first_accuracy(member.index, prepared.accuracy)
        member.accuracy, member.round = prepared.accuracy, prepared.round
        member.is_ready, member.is_expected_back, member.doing = True, False, "ready"
        self.mark_seen(member)
        _log.info("%s is ready as server %d", member.name, member.index)
        self._request_probes()
        if self.open_round.plan is not None:
            self._bring_up_to_date(self.open_round.plan, member)
        elif self._last_order is not None:
            self.send_order(member.index, self._last_order)
        self._notify()
        return None

    def mark_seen(self, member: EdgeMember) -> None:
        """Note a sign of life."""
        member.last_seen, member.has_left = time.monotonic(), False

    def take_report(self, member: EdgeMember, outcome: pb.Outcome) -> pb.Received:
        """Take an edge's report of the open round."""
        self.mark_seen(member)
        answer = self.open_round.take(member.index, outcome)
        if answer.accepted:
            member.round = outcome.round + 1
            for word, count in count_refusals(outcome).items():
                if word in self.refused or len(self.refused) < _MAX_WORDS:
                    self.refused[word] += count
        if answer.accepted or answer.reason == BAD_REPORT:
            self._release_neighbours(member, outcome if answer.accepted else pb.Outcome())
            self._dismiss_if_drained(member)
            failpoint("after-first-report")
        return answer

    def mark_left(self, member: EdgeMember, why: str, *, for_good: bool = False) -> None:
        """Note that an edge has left, or that its connection was lost: then it may be back soon."""
        if member.is_ready:
            _log.info("%s has left: %s", member.name, why)
        member.is_ready, member.doing = False, why
        member.has_left |= for_good
        self._notify()

    def note_reachable(self, member: EdgeMember, found: pb.Reachable) -> None:
        """Note whom an edge could dial, and tell peers that it no longer calls in this round not to wait for it."""
        self.membership.record_probes(member, found.yes, found.no)
        if (plan := self.open_round.plan) is not None:
            for index in self.open_round.abandoned.note(plan, member.index, found):
                self.send_order(index, make_missing_order(self.epoch, plan.t, (), [member.index]))
        self._notify()

    def open_orders(self, member: EdgeMember) -> asyncio.Queue[pb.Order]:
        """Open an edge's queue of orders; its older one ends."""
        return self._queues.open(member.index)

    def close_orders(self, member: EdgeMember, orders: asyncio.Queue[pb.Order]) -> None:
        """Close the queue of a lost connection; if the edge has connected again since, it stays a member."""
        if self._queues.close(member.index, orders):
            self.mark_left(member, "its connection was lost")

    def drain(self, member: EdgeMember) -> None:
        """Give this edge no new rounds, in this start and in later ones; it may finish the round it is in."""
        drained = {*(self._journal.read_fact("drained") or []), member.name}
        self._journal.write_fact("drained", sorted(drained))
        member.is_drained, member.doing = True, "drained"
        _log.info("%s is drained", member.name)
        if self.open_round.plan is None or member.index not in self.open_round.waiting_for:
            self._dismiss_if_drained(member)
        self._notify()

    def take_final(self, member: EdgeMember, figures: pb.FinalFigures) -> None:
        """Take an edge's final figures."""
        self.final[member.index] = figures
        self._notify()

    # Calls of the main loop.

    async def wait_for_servers(self, wanted: int) -> Presence:
        """Wait until at least `wanted` servers are active; returns which are, and who reaches whom."""
        logged = ""
        while True:
            now = time.monotonic()
            active = int(self.membership.active_mask(now).sum())
            awaited = [member.name for member in self.membership.expected_back(now)]
            if active >= wanted and not awaited and not await self._probe_links():
                self.waits_for = ""
                return self.membership.make_presence(time.monotonic())
            if active < wanted or awaited:
                self.waits_for = f"servers: {active} of at least {wanted} are there"
                if active >= wanted:
                    self.waits_for = "servers that were there before the restart: " + ", ".join(awaited)
                if logged != (logged := self.waits_for):
                    _log.warning("round %d waits for %s", self.next_round, logged)
                await self._wait_for_change(1.0)

    async def play(self, plan: RoundPlan, prices: EnergyPrices) -> RoundReport:
        """Announce a plan and collect reports until all have come, the missing edges are away, or time is up."""
        expected = {i for i in range(prices.num_servers) if plan.presence is None or plan.presence.active[i]}
        self.next_round, self.closes_at = plan.t, time.monotonic() + self.settings.round_seconds
        self.open_round.open(plan, expected, prices)
        self._send_round_orders(plan)
        while (awaited := self.open_round.waiting_for) and time.monotonic() < self.closes_at:
            gone = [index for index in awaited if not self._is_alive(index)]
            if len(gone) == len(awaited):
                break
            self._announce_gone(plan.t, gone)
            self.waits_for = "reports of " + ", ".join(m.name for i in awaited if (m := self.membership.get(i)))
            await self.open_round.wait_for_change(min(1.0, max(0.0, self.closes_at - time.monotonic())))
        if awaited := self.open_round.waiting_for:
            names = [member.name for index in awaited if (member := self.membership.get(index))]
            _log.warning("round %d closes without %s", plan.t, ", ".join(names))
        self.closes_at, self.waits_for = None, ""
        for pair in self.open_round.undelivered():
            self.membership.forget_pair(*pair)
        report = self.open_round.close()
        for member in self.membership.members:
            self._dismiss_if_drained(member)
        return report

    async def finish(self, seconds: float) -> None:
        """Ask all active edges for their final figures and wait for them."""
        self._last_order = pb.Order(epoch=self.epoch, finish=pb.Nothing())
        self._send_to_all(self._last_order)
        end = time.monotonic() + seconds
        while (silent := self._names_without_final()) and time.monotonic() < end:
            self.waits_for = "final figures of " + ", ".join(silent)
            await self._wait_for_change(1.0)
        self.waits_for = ""

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
        for index, order in make_round_orders(plan, self.membership, max(0.0, left)).items():
            if only in (None, index):
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
            for index in still_waiting(plan, self.membership, member, outcome, self.open_round.returned):
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

    # Who is there.

    def _is_alive(self, index: int) -> bool:
        """Return whether a round still waits for this server; one that is away may come back, but is not waited for."""
        member = self.membership.get(index)
        return member is not None and self.membership.is_alive(member, time.monotonic())

    def _names_without_final(self) -> list[str]:
        now = time.monotonic()
        active = [member for member in self.membership.members if self.membership.is_active(member, now)]
        return [member.name for member in active if member.index not in self.final]

    def _request_probes(self) -> None:
        for member, others in self.membership.plan_probes(time.monotonic()):
            peers = [describe_neighbour(other, dial=True) for other in others]
            self.send_order(member.index, pb.Order(epoch=self.epoch, probe=pb.ProbeOrder(peers=peers)))

    async def _probe_links(self) -> bool:
        """Have edges probe each other and wait briefly for answers; returns whether members came or went meanwhile."""
        end = time.monotonic() + min(_PROBE_SECONDS, self.settings.idle_seconds)
        before = self.membership.active_mask(time.monotonic())
        self._request_probes()
        while self.membership.is_probe_pending(time.monotonic()) and time.monotonic() < end:
            self.waits_for = "answers about who reaches whom"
            await self._wait_for_change(0.2)
        self.membership.give_up_probes()
        for sentence in self.membership.describe_reachability_changes(time.monotonic()):
            _log.warning("%s", sentence)
        after = self.membership.active_mask(time.monotonic())
        return len(before) != len(after) or bool((before != after).any())

    def _notify(self) -> None:
        self._changed.set()
        self.open_round.notify()

    async def _wait_for_change(self, seconds: float) -> None:
        self._changed.clear()
        try:
            await asyncio.wait_for(self._changed.wait(), seconds)
        except TimeoutError:
            return
