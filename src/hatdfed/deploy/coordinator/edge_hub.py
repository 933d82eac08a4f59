"""The coordinator's side of the wire: takes calls of edges, gives orders, keeps the room.

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
from hatdfed.deploy.coordinator.manifest import Manifest, told_by
from hatdfed.deploy.coordinator.membership import STARTED_TWICE, EdgeMember, Membership, NameTakenError, refuse_second
from hatdfed.deploy.coordinator.no_wait import AbandonedCalls, missing, still_waiting
from hatdfed.deploy.coordinator.open_round import BAD_REPORT, OpenRound
from hatdfed.deploy.coordinator.order_queues import OrderQueues
from hatdfed.deploy.coordinator.orders import neighbour, refusals, round_orders
from hatdfed.deploy.coordinator.settings import DeploySettings
from hatdfed.deploy.failpoints import failpoint
from hatdfed.deploy.protocol import hatdfed_pb2 as pb

_log = logging.getLogger("hatdfed.deploy.coordinator")
_PROBES_SECONDS = 10.0  # that a draw waits for news about who reaches whom
_MOST_WORDS = 64  # kinds of refusals that are counted


class EdgeHub:
    """Members, the open round, and a queue of orders for every edge that watches."""

    def __init__(self, journal: Journal, settings: DeploySettings, places: int, epoch: int, next_round: int) -> None:
        self.epoch = epoch
        self.settings = settings
        self.membership = Membership(places, settings.away_seconds)
        self.hall = OpenRound()
        self.final: dict[int, pb.FinalFigures] = {}
        self.refused: Counter[str] = Counter()
        self.next_round = next_round
        self.closes_at: float | None = None  # of the open round, on the monotonic clock
        self.waits_for = "servers"
        self.stop_asked = asyncio.Event()
        self._journal = journal
        self._queues = OrderQueues()
        self._last_order: pb.Order | None = None  # for those who come back: finish or stop
        self._silences = AbandonedCalls()  # of the open round
        self._news = asyncio.Event()
        drained = journal.fact("drained") or []
        for name, accuracy in journal.members():
            self.membership.restore(name, accuracy, time.monotonic()).is_drained = name in drained

    @property
    def manifest(self) -> Manifest | None:
        """What the edges have agreed upon; None before the first of them is ready."""
        found = self._journal.fact("manifest")
        return None if found is None else Manifest(**found)

    # What edges say.

    def admit(self, name: str, address: str, process: str = "") -> EdgeMember:
        """A place, committed before the edge hears of it; raises `NameTakenError` if another process has it."""
        now = time.monotonic()
        if (known := self.membership.named(name)) is None:
            self._journal.add_member(len(self.membership.members), name)
        elif known.index in self._queues.watching:
            try:
                refuse_second(self.membership, known, process, now)
            except NameTakenError as error:
                self.refused.update([STARTED_TWICE] * error.is_sure)
                raise
        return self.membership.admit(name, address, now, process)

    def ready(self, member: EdgeMember, prepared: pb.Prepared) -> str | None:
        """An edge can play; returns why not, if it cannot."""
        told = told_by(prepared)
        if told is None:
            return f"{member.name} says things about its model that cannot be."
        if (manifest := self.manifest) is None:
            self._journal.state_fact("manifest", vars(told))
        elif manifest != told:
            return f"{member.name} brings another model or other data than this run: {told}, wanted {manifest}."
        self._journal.first_accuracy(member.index, prepared.accuracy)
        member.accuracy, member.round = prepared.accuracy, prepared.round
        member.is_ready, member.is_awaited, member.doing = True, False, "ready"
        self.seen(member)
        _log.info("%s is ready as server %d", member.name, member.index)
        self._ask_for_probes()
        if self.hall.plan is not None:
            self._bring_up_to_date(self.hall.plan, member)
        elif self._last_order is not None:
            self.tell(member.index, self._last_order)
        self._tell_news()
        return None

    def seen(self, member: EdgeMember) -> None:
        """A sign of life."""
        member.last_seen, member.has_left = time.monotonic(), False

    def take_report(self, member: EdgeMember, outcome: pb.Outcome) -> pb.Received:
        """What came of the open round at an edge."""
        self.seen(member)
        answer = self.hall.take(member.index, outcome)
        if answer.accepted:
            member.round = outcome.round + 1
            for word, count in refusals(outcome).items():
                if word in self.refused or len(self.refused) < _MOST_WORDS:
                    self.refused[word] += count
        if answer.accepted or answer.reason == BAD_REPORT:
            self._tell_neighbours(member, outcome if answer.accepted else pb.Outcome())
            self._send_home_if_drained(member)
            failpoint("after-first-report")
        return answer

    def left(self, member: EdgeMember, why: str, *, for_good: bool = False) -> None:
        """An edge has gone, or its line is cut, which need not mean much."""
        if member.is_ready:
            _log.info("%s has left: %s", member.name, why)
        member.is_ready, member.doing = False, why
        member.has_left |= for_good
        self._tell_news()

    def reached(self, member: EdgeMember, found: pb.Reachable) -> None:
        """Whom an edge could dial, and whom it has given up in this round: that one need not wait for it."""
        self.membership.answered(member, found.yes, found.no)
        if (plan := self.hall.plan) is not None:
            for index in self._silences.note(plan, member.index, found):
                self.tell(index, missing(self.epoch, plan.t, (), [member.index]))
        self._tell_news()

    def watch(self, member: EdgeMember) -> asyncio.Queue[pb.Order]:
        """A fresh queue of orders; an older one of the same edge ends."""
        return self._queues.open(member.index)

    def unwatch(self, member: EdgeMember, orders: asyncio.Queue[pb.Order]) -> None:
        """A line was cut; nothing to say if the edge has dialled again since."""
        if self._queues.close(member.index, orders):
            self.left(member, "its line was cut")

    def drain(self, member: EdgeMember) -> None:
        """No new round for this edge, in this start and in later ones; it may finish the one it is in."""
        drained = {*(self._journal.fact("drained") or []), member.name}
        self._journal.state_fact("drained", sorted(drained))
        member.is_drained, member.doing = True, "drained"
        _log.info("%s is drained", member.name)
        if self.hall.plan is None or member.index not in self.hall.waiting_for:
            self._send_home_if_drained(member)
        self._tell_news()

    def take_final(self, member: EdgeMember, figures: pb.FinalFigures) -> None:
        """An edge's last word."""
        self.final[member.index] = figures
        self._tell_news()

    # What the main loop asks for.

    async def assembled(self, wanted: int) -> Presence:
        """Who is there, once enough are; pauses the run until then."""
        said = ""
        while True:
            now = time.monotonic()
            active = int(self.membership.active(now).sum())
            awaited = [member.name for member in self.membership.awaited(now)]
            if active >= wanted and not awaited and not await self._probing():
                self.waits_for = ""
                return self.membership.presence(time.monotonic())
            if active < wanted or awaited:
                self.waits_for = f"servers: {active} of at least {wanted} are there"
                if active >= wanted:
                    self.waits_for = "servers that were there before the restart: " + ", ".join(awaited)
                if said != (said := self.waits_for):
                    _log.warning("round %d waits for %s", self.next_round, said)
                await self._wait_for_news(1.0)

    async def play(self, plan: RoundPlan, prices: EnergyPrices) -> RoundReport:
        """Announce a plan and collect reports until all have come, the missing are away, or time is up."""
        expected = {i for i in range(prices.num_servers) if plan.presence is None or plan.presence.active[i]}
        self.next_round, self.closes_at = plan.t, time.monotonic() + self.settings.round_seconds
        self._silences = AbandonedCalls()
        self.hall.open(plan, expected, prices)
        self._order_round(plan)
        while (awaited := self.hall.waiting_for) and time.monotonic() < self.closes_at:
            gone = [index for index in awaited if not self._is_worth_waiting(index)]
            if len(gone) == len(awaited):
                break
            self._tell_gone(plan.t, gone)
            self.waits_for = "reports of " + ", ".join(m.name for i in awaited if (m := self.membership.at(i)))
            await self.hall.changed(min(1.0, max(0.0, self.closes_at - time.monotonic())))
        if awaited := self.hall.waiting_for:
            names = [member.name for index in awaited if (member := self.membership.at(index))]
            _log.warning("round %d closes without %s", plan.t, ", ".join(names))
        self.closes_at, self.waits_for = None, ""
        for pair in self.hall.undelivered():
            self.membership.doubt(*pair)
        report = self.hall.close()
        for member in self.membership.members:
            self._send_home_if_drained(member)
        return report

    async def finish(self, seconds: float) -> None:
        """Ask for the final figures of everybody who is there."""
        self._last_order = pb.Order(epoch=self.epoch, finish=pb.Nothing())
        self._tell_all(self._last_order)
        end = time.monotonic() + seconds
        while (silent := self._without_final()) and time.monotonic() < end:
            self.waits_for = "final figures of " + ", ".join(silent)
            await self._wait_for_news(1.0)
        self.waits_for = ""

    async def dismiss(self) -> None:
        """Send everybody home."""
        self._last_order = pb.Order(epoch=self.epoch, stop=pb.Nothing())
        self._tell_all(self._last_order)
        await asyncio.sleep(0.5)  # for the orders to leave

    # Orders.

    def tell(self, index: int, order: pb.Order) -> None:
        """Queue an order for an edge that watches."""
        if not self._queues.put(index, order) and (member := self.membership.at(index)) is not None:
            self.left(member, "it reads no orders")

    def _order_round(self, plan: RoundPlan, only: int | None = None) -> None:
        left = self.settings.round_seconds if self.closes_at is None else self.closes_at - time.monotonic()
        for index, order in round_orders(plan, self.membership, max(0.0, left)).items():
            if only in (None, index):
                self.tell(index, pb.Order(epoch=self.epoch, round=order))
                failpoint("half-announced")

    def _tell_all(self, order: pb.Order) -> None:
        for index in self._queues.watching:
            self.tell(index, order)

    def _tell_gone(self, t: int, gone: list[int]) -> None:
        """Whoever waits for a model of theirs need not."""
        if new := set(gone) - self.hall.gone:
            self.hall.gone |= new
            self._tell_all(missing(self.epoch, t, new))

    def _tell_neighbours(self, member: EdgeMember, outcome: pb.Outcome) -> None:
        """Who still hopes for a model from a server that is done, or for it to fetch one, need not."""
        if (plan := self.hall.plan) is not None:
            for index in still_waiting(plan, self.membership, member, outcome, self.hall.returned):
                self.tell(index, missing(self.epoch, plan.t, {member.index}))

    def _bring_up_to_date(self, plan: RoundPlan, member: EdgeMember) -> None:
        """For one that comes while a round is open: its order, if it has part in it, and for whom not to wait."""
        self.hall.returned.add(member.index)
        self._order_round(plan, only=member.index)
        silent = self._silences.towards(member.index)
        self.tell(member.index, missing(self.epoch, plan.t, self.hall.gone | self.hall.done, silent))

    def _send_home_if_drained(self, member: EdgeMember) -> None:
        if member.is_drained:
            self.tell(member.index, pb.Order(epoch=self.epoch, leave="drained by whoever runs the coordinator"))

    # Who is there.

    def _is_worth_waiting(self, index: int) -> bool:
        """A server that is away may be back before the round closes, but nobody waits for that."""
        member = self.membership.at(index)
        return member is not None and self.membership.is_alive(member, time.monotonic())

    def _without_final(self) -> list[str]:
        now = time.monotonic()
        there = [member for member in self.membership.members if self.membership.is_active(member, now)]
        return [member.name for member in there if member.index not in self.final]

    def _ask_for_probes(self) -> None:
        for member, others in self.membership.to_ask(time.monotonic()):
            peers = [neighbour(other, dial=True) for other in others]
            self.tell(member.index, pb.Order(epoch=self.epoch, probe=pb.ProbeOrder(peers=peers)))

    async def _probing(self) -> bool:
        """Ask who reaches whom and wait a little for the answers; whether anybody has come or gone meanwhile."""
        end = time.monotonic() + min(_PROBES_SECONDS, self.settings.idle_seconds)
        before = self.membership.active(time.monotonic())
        self._ask_for_probes()
        while self.membership.is_answer_due(time.monotonic()) and time.monotonic() < end:
            self.waits_for = "answers about who reaches whom"
            await self._wait_for_news(0.2)
        self.membership.stop_asking()
        for sentence in self.membership.news_of_apart(time.monotonic()):
            _log.warning("%s", sentence)
        after = self.membership.active(time.monotonic())
        return len(before) != len(after) or bool((before != after).any())

    def _tell_news(self) -> None:
        self._news.set()
        self.hall.wake()

    async def _wait_for_news(self, seconds: float) -> None:
        self._news.clear()
        try:
            await asyncio.wait_for(self._news.wait(), seconds)
        except TimeoutError:
            return
