"""Who need not wait for whom in a round: for servers that are gone or done, and for those whose line is lost."""

from __future__ import annotations

from collections.abc import Iterable

from hatdfed.core.round import RoundPlan
from hatdfed.deploy.coordinator.membership import EdgeMember, Membership
from hatdfed.deploy.protocol import hatdfed_pb2 as pb


class AbandonedCalls:
    """Servers that are there but have given up calling some of their neighbours in the open round."""

    def __init__(self) -> None:
        self._by_called: dict[int, set[int]] = {}

    def note(self, plan: RoundPlan, caller: int, found: pb.Reachable) -> list[int]:
        """Whom `caller` calls no more; nobody, if that is not of this round or not its neighbour."""
        if found.round != plan.t:
            return []
        topology = plan.draw.topology
        called = set(found.lost) & {*topology.receivers(caller), *topology.senders(caller)}
        for index in called:
            self._by_called.setdefault(index, set()).add(caller)
        return sorted(called)

    def towards(self, index: int) -> set[int]:
        """Who will not call this server."""
        return self._by_called.get(index, set())


def still_waiting(
    plan: RoundPlan, membership: Membership, member: EdgeMember, outcome: pb.Outcome, back: set[int]
) -> set[int]:
    """Who still hopes for a model from a server that is done, or for it to fetch one; `back`: who came back since."""
    topology, i = plan.draw.topology, member.index
    taken, brought = {slot.server for slot in outcome.slots}, {s.receiver for s in outcome.sent if s.delivered}
    hopes = {j for j in topology.receivers(i) if j not in brought or j in back}
    for j in topology.senders(i):
        sender = membership.at(j)
        if sender is not None and (j not in taken or not membership.can_dial(sender, member)):
            hopes.add(j)
    return hopes


def missing(epoch: int, t: int, servers: Iterable[int], silent: Iterable[int] = ()) -> pb.Order:
    """The order not to wait."""
    return pb.Order(epoch=epoch, missing=pb.Missing(round=t, servers=sorted(servers), silent=sorted(silent)))
