"""The round that is being played: who is expected, who has reported, and who need not wait for whom."""

from __future__ import annotations

import asyncio
from collections import Counter

from hatdfed.core.consensus import estimate_consensus_distance
from hatdfed.core.energy.prices import EnergyPrices
from hatdfed.core.round import RoundPlan, RoundReport, ServerReport
from hatdfed.deploy.coordinator.membership import EdgeMember, Membership
from hatdfed.deploy.coordinator.orders import read_report
from hatdfed.deploy.protocol import hatdfed_pb2 as pb
from hatdfed.errors import WireError

BAD_REPORT = "bad-report"


class AbandonedCalls:
    """Servers that are alive but have given up calling some of their neighbours in the open round."""

    def __init__(self) -> None:
        self._callers: dict[int, set[int]] = {}  # by the server that is no longer called

    def note(self, plan: RoundPlan, caller: int, found: pb.Reachable) -> list[int]:
        """Note whom `caller` no longer calls and return them; other rounds and servers without a link are ignored."""
        if found.round != plan.t:
            return []
        topology = plan.draw.topology
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
        self.refused: Counter[str] = Counter()
        self.gone: set[int] = set()  # servers that all edges were told not to wait for
        self.returned: set[int] = set()  # servers that came back in this round, without what they had received
        self.abandoned = AbandonedCalls()
        self._prices: EnergyPrices | None = None
        self._reports: dict[int, ServerReport] = {}
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

    def open(self, plan: RoundPlan, expected: set[int], prices: EnergyPrices) -> None:
        """Begin a round."""
        self.plan, self._expected, self._prices = plan, expected, prices
        self._reports, self._rejected, self.gone, self.returned = {}, set(), set(), set()
        self.abandoned = AbandonedCalls()
        self._changed.set()

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
        """End the round and return its reports."""
        plan, prices = self.plan, self._prices
        if plan is None or prices is None:
            raise RuntimeError("no round is open")
        self.plan = None
        distance = estimate_consensus_distance([report.sketch for report in self._reports.values()])
        return RoundReport(tuple(self._reports.get(server) for server in range(prices.num_servers)), distance)

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
        if server in self._reports:
            raise WireError("duplicate", "A report came twice.")
        try:
            self._reports[server] = read_report(outcome, self.plan, self._prices, server)
        except WireError:
            self._rejected.add(server)  # the round does not wait for a better report, but would accept one
            raise


def still_waiting(
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
        if sender is not None and (j not in merged or not membership.can_dial(sender, member)):
            waiting.add(j)
    return waiting
