"""The round that is being played: who is expected, who has reported, and what is refused."""

from __future__ import annotations

import asyncio
from collections import Counter

from hatdfed.core.consensus import estimate_consensus_distance
from hatdfed.core.energy.prices import EnergyPrices
from hatdfed.core.round import RoundPlan, RoundReport, ServerReport
from hatdfed.deploy.coordinator.orders import server_report
from hatdfed.deploy.protocol import hatdfed_pb2 as pb
from hatdfed.errors import WireError

BAD_REPORT = "bad-report"


class OpenRound:
    """Collects the reports of one round at a time."""

    def __init__(self) -> None:
        self.plan: RoundPlan | None = None
        self.refused: Counter[str] = Counter()
        self.gone: set[int] = set()  # servers of which everybody was told that they are away
        self.returned: set[int] = set()  # servers that came back in this round, without what they had received
        self._prices: EnergyPrices | None = None
        self._reports: dict[int, ServerReport] = {}
        self._disbelieved: set[int] = set()
        self._expected: set[int] = set()
        self._changed = asyncio.Event()

    @property
    def waiting_for(self) -> list[int]:
        """Whose report is missing."""
        return sorted(self._expected - self.done)

    @property
    def done(self) -> set[int]:
        """Who has said its last word in this round, believed or not: no model will come from there any more."""
        return self._reports.keys() | self._disbelieved

    def open(self, plan: RoundPlan, expected: set[int], prices: EnergyPrices) -> None:
        """Begin a round."""
        self.plan, self._expected, self._prices = plan, expected, prices
        self._reports, self._disbelieved, self.gone, self.returned = {}, set(), set(), set()
        self._changed.set()

    def take(self, server: int, outcome: pb.Outcome) -> pb.Received:
        """A report, taken once; everything else is refused and counted."""
        try:
            self._take(server, outcome)
        except WireError as error:
            self.refused[error.reason] += 1
            return pb.Received(accepted=False, reason=error.reason)
        finally:
            self._changed.set()
        return pb.Received(accepted=True)

    def close(self) -> RoundReport:
        """What came of the round."""
        plan, prices = self.plan, self._prices
        if plan is None or prices is None:
            raise RuntimeError("no round is open")
        self.plan = None
        distance = estimate_consensus_distance([report.sketch for report in self._reports.values()])
        return RoundReport(tuple(self._reports.get(server) for server in range(prices.num_servers)), distance)

    def undelivered(self) -> list[tuple[int, int]]:
        """Receivers that reported, and senders whose models did not reach them."""
        if self.plan is None:
            return []
        senders = {server: self.plan.draw.topology.senders(server) for server in self._reports}
        return [(i, j) for i, those in senders.items() for j in those if j not in self._reports[i].senders]

    def wake(self) -> None:
        """Something else has happened."""
        self._changed.set()

    async def changed(self, seconds: float) -> None:
        """Wait until something has happened, or for so long."""
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
            self._reports[server] = server_report(outcome, self.plan, self._prices, server)
        except WireError:
            self._disbelieved.add(server)  # nobody waits for something better, but it would be taken
            raise
