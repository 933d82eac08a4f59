"""The coordinator's side of the wire: takes calls of edges, gives orders, keeps the room.

It decides nothing: plans come from the main loop, which plays them here through `RemoteFleet`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from dataclasses import dataclass

from hatdfed.energy.prices import EnergyPrices
from hatdfed.net.journal import Journal
from hatdfed.net.membership import Member, Membership
from hatdfed.net.orders import neighbour, round_orders
from hatdfed.net.protocol import hatdfed_pb2 as pb
from hatdfed.net.round_hall import RoundHall
from hatdfed.net.settings import DeploySettings
from hatdfed.presence import Presence
from hatdfed.round import RoundPlan, RoundReport

_log = logging.getLogger("hatdfed.net.coordinator")
_PROBES_SECONDS = 10.0  # that a draw waits for news about who reaches whom


@dataclass(frozen=True)
class Manifest:
    """What all models of a run have in common; the first edge says it, all others must agree."""

    num_params: int
    bits_per_sample: int
    layout: str
    message_share: float


class Station:
    """Members, the open round, and a queue of orders for every edge that watches."""

    def __init__(self, journal: Journal, settings: DeploySettings, places: int, epoch: int, next_round: int) -> None:
        self.epoch = epoch
        self.settings = settings
        self.membership = Membership(places, settings.away_seconds)
        self.hall = RoundHall()
        self.final: dict[int, pb.FinalFigures] = {}
        self.refused: Counter[str] = Counter()
        self.next_round = next_round
        self.closes_at: float | None = None  # of the open round, on the monotonic clock
        self.waits_for = "servers"
        self.stop_asked = asyncio.Event()
        self._journal = journal
        self._queues: dict[int, asyncio.Queue[pb.Order]] = {}
        self._last_order: pb.Order | None = None  # for those who come back: finish or stop
        self._news = asyncio.Event()
        self._told_missing: set[int] = set()
        for name, accuracy in journal.members():
            self.membership.restore(name, accuracy)

    @property
    def manifest(self) -> Manifest | None:
        """What the edges have agreed upon; None before the first of them is ready."""
        found = self._journal.fact("manifest")
        return None if found is None else Manifest(**found)

    # What edges say.

    def ready(self, member: Member, prepared: pb.Prepared) -> str | None:
        """An edge can play; returns why not, if it cannot."""
        told = Manifest(prepared.num_params, prepared.bits_per_sample, prepared.layout, prepared.message_share)
        if (manifest := self.manifest) is None:
            self._journal.state_fact("manifest", vars(told))
        elif manifest != told:
            return f"{member.name} brings another model or other data than this run: {told}, wanted {manifest}."
        if not 0 <= prepared.accuracy <= 1:
            return f"{member.name} reports an accuracy of {prepared.accuracy}."
        member.accuracy, member.round = prepared.accuracy, prepared.round
        self._journal.add_member(member.index, member.name, member.accuracy)
        member.is_ready, member.doing = True, "ready"
        self.seen(member)
        _log.info("%s is ready as server %d", member.name, member.index)
        self._ask_for_probes()
        if self.hall.plan is not None:
            self._order_round(self.hall.plan, only=member.index)
        elif self._last_order is not None:
            self.tell(member.index, self._last_order)
        self._tell_news()
        return None

    def seen(self, member: Member) -> None:
        """A sign of life."""
        member.last_seen = time.monotonic()

    def left(self, member: Member, why: str) -> None:
        """An edge has gone, or its line is cut."""
        if member.is_ready:
            _log.info("%s has left: %s", member.name, why)
        member.is_ready, member.doing = False, why
        self._tell_news()

    def reached(self, member: Member, found: pb.Reachable) -> None:
        """Whom an edge could dial."""
        known = range(self.membership.num_places)
        member.dials |= {index: True for index in found.yes if index in known}
        member.dials |= {index: False for index in found.no if index in known}
        self._tell_news()

    def orders_for(self, index: int) -> asyncio.Queue[pb.Order]:
        """A fresh queue; an older one of the same edge ends."""
        if (old := self._queues.get(index)) is not None:
            old.put_nowait(pb.Order(epoch=-1))
        self._queues[index] = asyncio.Queue()
        return self._queues[index]

    def is_watched_by(self, index: int, orders: asyncio.Queue[pb.Order]) -> bool:
        """Whether this queue is still the edge's own, or it has dialled again since."""
        return self._queues.get(index) is orders

    def drain(self, member: Member) -> None:
        """No new round for this edge; the open one is waited for no more."""
        member.is_drained, member.doing = True, "drained"
        _log.info("%s is drained", member.name)
        self.tell(member.index, pb.Order(epoch=self.epoch, leave="drained by whoever runs the coordinator"))
        self._tell_news()

    def take_final(self, member: Member, figures: pb.FinalFigures) -> None:
        """An edge's last word."""
        self.final[member.index] = figures
        self._tell_news()

    # What the main loop asks for.

    async def assembled(self, wanted: int) -> Presence:
        """Who is there, once enough are; pauses the run until then."""
        paused = False
        while True:
            active = int(self.membership.active(time.monotonic()).sum())
            if active >= wanted and not await self._probing():
                self.waits_for = ""
                return self.membership.presence(time.monotonic())
            if active < wanted:
                self.waits_for = f"servers: {active} of at least {wanted} are there"
                if not paused:
                    _log.warning("round %d waits for %s", self.next_round, self.waits_for)
                    paused = True
                await self._wait_for_news(1.0)

    async def play(self, plan: RoundPlan, prices: EnergyPrices) -> RoundReport:
        """Announce a plan and collect reports until all have come, the missing are away, or time is up."""
        expected = {i for i in range(prices.num_servers) if plan.presence is None or plan.presence.active[i]}
        seconds = self.settings.round_seconds
        self.next_round, self.closes_at = plan.t, time.monotonic() + seconds
        self._told_missing = set()
        self.hall.open(plan, expected, prices)
        self._order_round(plan)
        while (missing := self.hall.waiting_for) and time.monotonic() < self.closes_at:
            gone = [index for index in missing if not self._is_worth_waiting(index)]
            if len(gone) == len(missing):
                break
            self._tell_missing(plan.t, gone)
            names = [member.name for index in missing if (member := self.membership.at(index))]
            self.waits_for = "reports of " + ", ".join(names)
            await self.hall.changed(min(1.0, max(0.0, self.closes_at - time.monotonic())))
        if missing := self.hall.waiting_for:
            _log.warning("round %d closes without servers %s", plan.t, missing)
        self.closes_at, self.waits_for = None, ""
        self._probe_again(plan, self.hall)
        return self.hall.close()

    async def finish(self, seconds: float) -> None:
        """Ask for the final figures of everybody who is there."""
        self._last_order = pb.Order(epoch=self.epoch, finish=pb.Nothing())
        self._tell_all(self._last_order)
        end = time.monotonic() + seconds
        while (missing := self._without_final()) and time.monotonic() < end:
            self.waits_for = "final figures of " + ", ".join(missing)
            await self._wait_for_news(1.0)
        self.waits_for = ""

    async def dismiss(self) -> None:
        """Send everybody home."""
        self._last_order = pb.Order(epoch=self.epoch, stop=pb.Nothing())
        self._tell_all(self._last_order)
        await asyncio.sleep(0.5)  # for the orders to leave

    def tell(self, index: int, order: pb.Order) -> None:
        """Queue an order for an edge that watches."""
        if (queue := self._queues.get(index)) is not None:
            queue.put_nowait(order)

    def _order_round(self, plan: RoundPlan, only: int | None = None) -> None:
        left = self.settings.round_seconds if self.closes_at is None else self.closes_at - time.monotonic()
        for index, order in round_orders(plan, self.membership, max(0.0, left)).items():
            if only in (None, index):
                self.tell(index, pb.Order(epoch=self.epoch, round=order))

    def _tell_all(self, order: pb.Order) -> None:
        for index in self._queues:
            self.tell(index, order)

    def _tell_missing(self, t: int, gone: list[int]) -> None:
        """Whoever waits for a model of theirs need not."""
        if gone and set(gone) != self._told_missing:
            self._told_missing = set(gone)
            self._tell_all(pb.Order(epoch=self.epoch, missing=pb.Missing(round=t, servers=gone)))

    def _is_worth_waiting(self, index: int) -> bool:
        """A server that is away may be back before the round closes, but nobody waits for that."""
        member = self.membership.at(index)
        if member is None or member.is_drained:
            return False
        return time.monotonic() - member.last_seen <= self.settings.away_seconds

    def _without_final(self) -> list[str]:
        now = time.monotonic()
        return [
            m.name for m in self.membership.members if self.membership.is_active(m, now) and m.index not in self.final
        ]

    def _ask_for_probes(self) -> None:
        for index, others in self.membership.unknown_pairs().items():
            if others:
                peers = [neighbour(other, dial=True) for other in others]
                self.tell(index, pb.Order(epoch=self.epoch, probe=pb.ProbeOrder(peers=peers)))

    def _probe_again(self, plan: RoundPlan, hall: RoundHall) -> None:
        """Where a model did not arrive although both ends are there, ask again who reaches whom."""
        for receiver, sender in hall.undelivered():
            ends = self.membership.at(receiver), self.membership.at(sender)
            if ends[0] is not None and ends[1] is not None:
                ends[0].dials.pop(sender, None)
                ends[1].dials.pop(receiver, None)
        self._ask_for_probes()

    async def _probing(self) -> bool:
        """Wait a little for answers that are on their way; whether anybody has gone meanwhile."""
        end = time.monotonic() + min(_PROBES_SECONDS, self.settings.idle_seconds)
        before = self.membership.active(time.monotonic())
        while any(self.membership.unknown_pairs().values()) and time.monotonic() < end:
            await self._wait_for_news(0.2)
        return bool((self.membership.active(time.monotonic()) != before).any())

    def _tell_news(self) -> None:
        self._news.set()
        self.hall.wake()

    async def _wait_for_news(self, seconds: float) -> None:
        self._news.clear()
        try:
            await asyncio.wait_for(self._news.wait(), seconds)
        except TimeoutError:
            return
