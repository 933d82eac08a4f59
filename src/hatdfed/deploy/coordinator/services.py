"""The gRPC services of the coordinator: who calls, may they, and what the station says to it.

A caller's name comes from its certificate. A refusal is one line in the log here and the same line at the caller.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import grpc

from hatdfed.deploy.coordinator.edge_hub import EdgeHub
from hatdfed.deploy.coordinator.membership import EdgeMember, NameTakenError
from hatdfed.deploy.coordinator.orders import neighbour
from hatdfed.deploy.identity.deny import DenyList
from hatdfed.deploy.identity.identity_store import IdentityStore
from hatdfed.deploy.identity.names import COORDINATOR_ROLE, EDGE_ROLE, Node
from hatdfed.deploy.protocol import hatdfed_pb2 as pb
from hatdfed.deploy.protocol.hatdfed_pb2_grpc import CoordinationServicer, OperationServicer
from hatdfed.deploy.transport.endpoints import Endpoints
from hatdfed.errors import HatdfedError, IdentityError, RunFolderError
from hatdfed.version import __version__

PROTOCOL = 1  # grows whenever an older edge or coordinator would misunderstand
_log = logging.getLogger("hatdfed.deploy.coordinator")
_ADDRESS = re.compile(
    r"(?!(unix|unix-abstract|vsock|ipv4|ipv6|dns):)([A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]):[0-9]{1,5}"
)


@dataclass(frozen=True)
class Door:
    """Who may come in."""

    ends: Endpoints
    denied: DenyList | None = None

    async def edge(self, context: Any) -> str:
        """The name of the edge that calls."""
        return (await self._caller(context, EDGE_ROLE)).name

    async def operator(self, context: Any) -> None:
        """Whoever runs the coordinator has its certificate."""
        await self._caller(context, COORDINATOR_ROLE)

    async def _caller(self, context: Any, role: str) -> Node:
        try:
            node = self.ends.caller(context)
        except IdentityError as error:
            await refuse(context, grpc.StatusCode.UNAUTHENTICATED, str(error))
        if node.role != role:
            await refuse(
                context, grpc.StatusCode.PERMISSION_DENIED, f"{node} is no {role}, so it may not ask for this."
            )
        if self.denied is not None and node.name in self.denied:
            await refuse(context, grpc.StatusCode.PERMISSION_DENIED, f"{node.name} is on the deny-list.")
        return node


async def refuse(context: Any, code: grpc.StatusCode, sentence: str) -> NoReturn:
    """One line here, the same line there."""
    _log.warning("refused: %s", sentence)
    await context.abort(code, sentence)
    raise AssertionError("abort does not return")


def _plain(text: str) -> str:
    """What an edge wrote, as it may stand in a line of a log or a table."""
    return "".join(letter for letter in text[:80] if letter.isprintable())


class CoordinationService(CoordinationServicer):
    """What edges may ask for."""

    def __init__(self, station: EdgeHub, door: Door, run: str, config: str, office: IdentityStore | None) -> None:
        self._station = station
        self._door = door
        self._run = run
        self._config = config
        self._office = office

    async def Join(self, request: pb.Hello, context: Any) -> pb.Welcome:
        """A place in the run."""
        name = await self._door.edge(context)
        if request.protocol != PROTOCOL:
            await refuse(
                context,
                grpc.StatusCode.FAILED_PRECONDITION,
                f"{name} runs hatdfed {_plain(request.version)} with protocol {request.protocol}, the coordinator "
                f"{__version__} with protocol {PROTOCOL}. Install the same version on both.",
            )
        station = self._station
        known = station.membership.named(name)
        if known is not None and known.is_drained:
            await refuse(context, grpc.StatusCode.PERMISSION_DENIED, f"{name} has been drained from this run.")
        if request.address and not _ADDRESS.fullmatch(request.address):
            await refuse(
                context,
                grpc.StatusCode.FAILED_PRECONDITION,
                f"{name} says that others reach it at {_plain(request.address)}, which is no HOST:PORT.",
            )
        try:
            member = station.admit(name, request.address, request.process[:64])
        except NameTakenError as error:  # an edge tries again only while the other one may be dead
            taken, unsure = grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.ALREADY_EXISTS
            await refuse(context, taken if error.is_sure else unsure, str(error))
        except RunFolderError as error:
            await refuse(context, grpc.StatusCode.UNAVAILABLE, str(error))
        return pb.Welcome(
            run=self._run,
            epoch=station.epoch,
            index=member.index,
            config=self._config,
            beat_seconds=station.settings.beat_seconds,
            idle_seconds=station.settings.idle_seconds,
            round=station.next_round,
            copy_from=self._to_copy_from(member) if request.run != self._run else [],
        )

    async def Ready(self, request: pb.Prepared, context: Any) -> pb.Nothing:
        """The edge can play."""
        member = await self._member(context, request.epoch)
        try:
            reason = self._station.ready(member, request)
        except RunFolderError as error:
            await refuse(context, grpc.StatusCode.UNAVAILABLE, str(error))
        if reason:
            await refuse(context, grpc.StatusCode.FAILED_PRECONDITION, reason)
        return pb.Nothing()

    async def Watch(self, request: pb.Watching, context: Any) -> AsyncIterator[pb.Order]:
        """Orders, as they come."""
        member = await self._member(context, request.epoch)
        orders = self._station.watch(member)
        await context.send_initial_metadata(())  # now the edge may say that it is ready: no order will be missed
        try:
            while (order := await orders.get()).epoch == self._station.epoch:
                yield order
        finally:
            self._station.unwatch(member, orders)

    async def Report(self, request: pb.Outcome, context: Any) -> pb.Received:
        """What came of a round at this edge."""
        member = await self._member(context, request.epoch)
        answer = self._station.take_report(member, request)
        if not answer.accepted:
            _log.warning("refused: report of round %d by %s: %s", request.round, member.name, answer.reason)
        return answer

    async def Reached(self, request: pb.Reachable, context: Any) -> pb.Nothing:
        """Whom the edge could dial."""
        self._station.reached(await self._member(context, request.epoch), request)
        return pb.Nothing()

    async def Final(self, request: pb.FinalFigures, context: Any) -> pb.Nothing:
        """The edge's last word."""
        self._station.take_final(await self._member(context, request.epoch), request)
        return pb.Nothing()

    async def Beat(self, request: pb.Pulse, context: Any) -> pb.Nothing:
        """A sign of life."""
        member = await self._member(context, request.epoch)
        self._station.seen(member)
        if member.is_ready and not member.is_drained:
            member.doing = _plain(request.doing)
        return pb.Nothing()

    async def Leave(self, request: pb.Goodbye, context: Any) -> pb.Nothing:
        """The edge goes of its own will."""
        name = await self._door.edge(context)
        if (member := self._station.membership.named(name)) is not None:
            self._station.left(member, _plain(request.why) or "it said goodbye", for_good=True)
        return pb.Nothing()

    async def Renew(self, request: pb.SigningRequest, context: Any) -> pb.Certificate:
        """A new certificate for the same node."""
        name = await self._door.edge(context)
        if self._office is None:
            await refuse(context, grpc.StatusCode.UNIMPLEMENTED, "This coordinator has no authority to sign with.")
        try:
            signed = self._office.renew(Node(EDGE_ROLE, name), request.csr)
        except HatdfedError as error:
            await refuse(context, grpc.StatusCode.INVALID_ARGUMENT, str(error))
        _log.info("renewed the certificate of %s", name)
        return pb.Certificate(certificate=signed)

    async def _member(self, context: Any, epoch: int) -> EdgeMember:
        name = await self._door.edge(context)
        member = self._station.membership.named(name)
        if epoch != self._station.epoch or member is None:
            await refuse(context, grpc.StatusCode.ABORTED, f"{name} speaks of an earlier start; it has to join again.")
        return member

    def _to_copy_from(self, member: EdgeMember) -> list[pb.Neighbour]:
        """Peers whose model a late joiner may take; nobody before the first round."""
        if self._station.next_round == 0:
            return []
        others = [other for other in self._station.membership.members if other.is_ready and other.address]
        return [neighbour(other, dial=True) for other in others if other is not member][:8]


class OperationService(OperationServicer):
    """What whoever runs the coordinator may ask for."""

    def __init__(self, station: EdgeHub, door: Door, status: Callable[[], dict[str, Any]]) -> None:
        self._station = station
        self._door = door
        self._status = status

    async def Status(self, request: pb.Nothing, context: Any) -> pb.StatusText:
        """Where the run stands."""
        await self._door.operator(context)
        return pb.StatusText(json=json.dumps(self._status()))

    async def Drain(self, request: pb.NodeName, context: Any) -> pb.StatusText:
        """Let one edge go after its round."""
        await self._door.operator(context)
        member = self._station.membership.named(request.name)
        if member is None:
            await refuse(context, grpc.StatusCode.NOT_FOUND, f"There is no server called {request.name!r} in this run.")
        try:
            self._station.drain(member)
        except RunFolderError as error:
            await refuse(context, grpc.StatusCode.UNAVAILABLE, str(error))
        return pb.StatusText(json=json.dumps(self._status()))

    async def Stop(self, request: pb.Nothing, context: Any) -> pb.Nothing:
        """End the coordinator; the run can go on later."""
        await self._door.operator(context)
        self._station.stop_asked.set()
        return pb.Nothing()
