"""The coordinator's gRPC services: they check who calls and pass the call to the hub.

A caller's name comes from its certificate. A refusal is logged here and sent to the caller, in the same words.
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
from hatdfed.deploy.coordinator.orders import describe_neighbour
from hatdfed.deploy.identity.deny import DenyList
from hatdfed.deploy.identity.identity_store import IdentityStore
from hatdfed.deploy.identity.names import COORDINATOR_ROLE, EDGE_ROLE, NodeId
from hatdfed.deploy.protocol import hatdfed_pb2 as pb
from hatdfed.deploy.protocol.hatdfed_pb2_grpc import CoordinationServicer, OperationServicer
from hatdfed.deploy.transport.endpoints import Endpoints
from hatdfed.errors import HatdfedError, IdentityError, RunFolderError
from hatdfed.version import __version__

PROTOCOL = 1  # to be increased whenever an older edge or coordinator would misunderstand
_log = logging.getLogger("hatdfed.deploy.coordinator")
_ADDRESS = re.compile(
    r"(?!(unix|unix-abstract|vsock|ipv4|ipv6|dns):)([A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]):[0-9]{1,5}"
)


@dataclass(frozen=True)
class AccessControl:
    """Checks who may call what."""

    endpoints: Endpoints
    deny_list: DenyList | None = None

    async def require_edge(self, context: Any) -> str:
        """Return the name of the edge that calls; any other caller is refused."""
        return (await self._require_role(context, EDGE_ROLE)).name

    async def require_operator(self, context: Any) -> None:
        """Refuse callers other than the coordinator's operator, who has its certificate."""
        await self._require_role(context, COORDINATOR_ROLE)

    async def _require_role(self, context: Any, role: str) -> NodeId:
        try:
            node = self.endpoints.identify_caller(context)
        except IdentityError as error:
            await refuse(context, grpc.StatusCode.UNAUTHENTICATED, str(error))
        if node.role != role:
            await refuse(
                context, grpc.StatusCode.PERMISSION_DENIED, f"{node} is no {role}, so it may not ask for this."
            )
        if self.deny_list is not None and node.name in self.deny_list:
            await refuse(context, grpc.StatusCode.PERMISSION_DENIED, f"{node.name} is on the deny-list.")
        return node


async def refuse(context: Any, code: grpc.StatusCode, sentence: str) -> NoReturn:
    """Log a refusal and end the call with the same sentence."""
    _log.warning("refused: %s", sentence)
    await context.abort(code, sentence)
    raise AssertionError("abort does not return")


def _sanitize(text: str) -> str:
    """Shorten what an edge sent to one printable line, for logs and tables."""
    return "".join(letter for letter in text[:80] if letter.isprintable())


class CoordinationService(CoordinationServicer):
    """The calls that edges may make."""

    def __init__(
        self, hub: EdgeHub, access: AccessControl, run: str, config: str, identity_store: IdentityStore | None
    ) -> None:
        self._hub = hub
        self._access = access
        self._run = run
        self._config = config
        self._identity_store = identity_store

    async def Join(self, request: pb.Hello, context: Any) -> pb.Welcome:
        """Admit an edge to the run."""
        name = await self._access.require_edge(context)
        if request.protocol != PROTOCOL:
            await refuse(
                context,
                grpc.StatusCode.FAILED_PRECONDITION,
                f"{name} runs hatdfed {_sanitize(request.version)} with protocol {request.protocol}, the coordinator "
                f"{__version__} with protocol {PROTOCOL}. Install the same version on both.",
            )
        hub = self._hub
        known = hub.membership.find(name)
        if known is not None and known.is_drained:
            await refuse(context, grpc.StatusCode.PERMISSION_DENIED, f"{name} has been drained from this run.")
        if request.address and not _ADDRESS.fullmatch(request.address):
            await refuse(
                context,
                grpc.StatusCode.FAILED_PRECONDITION,
                f"{name} says that others reach it at {_sanitize(request.address)}, which is no HOST:PORT.",
            )
        try:
            member = hub.admit(name, request.address, request.process[:64])
        except NameTakenError as error:  # the edge tries again only while the other process may be dead
            taken, unsure = grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.ALREADY_EXISTS
            await refuse(context, taken if error.is_sure else unsure, str(error))
        except RunFolderError as error:
            await refuse(context, grpc.StatusCode.UNAVAILABLE, str(error))
        return pb.Welcome(
            run=self._run,
            epoch=hub.epoch,
            index=member.index,
            config=self._config,
            beat_seconds=hub.settings.beat_seconds,
            idle_seconds=hub.settings.idle_seconds,
            round=hub.next_round,
            copy_from=self._peers_to_copy(member) if request.run != self._run else [],
        )

    async def Ready(self, request: pb.Prepared, context: Any) -> pb.Nothing:
        """Note that an edge has everything that it needs for rounds."""
        member = await self._require_member(context, request.epoch)
        try:
            reason = self._hub.mark_ready(member, request)
        except RunFolderError as error:
            await refuse(context, grpc.StatusCode.UNAVAILABLE, str(error))
        if reason:
            await refuse(context, grpc.StatusCode.FAILED_PRECONDITION, reason)
        return pb.Nothing()

    async def Watch(self, request: pb.Watching, context: Any) -> AsyncIterator[pb.Order]:
        """Stream orders to an edge."""
        member = await self._require_member(context, request.epoch)
        orders = self._hub.open_orders(member)
        await context.send_initial_metadata(())  # now the edge may call Ready: it will miss no order
        try:
            while (order := await orders.get()).epoch == self._hub.epoch:
                yield order
        finally:
            self._hub.close_orders(member, orders)

    async def Report(self, request: pb.Outcome, context: Any) -> pb.Received:
        """Take an edge's report of a round."""
        member = await self._require_member(context, request.epoch)
        answer = self._hub.take_report(member, request)
        if not answer.accepted:
            _log.warning("refused: report of round %d by %s: %s", request.round, member.name, answer.reason)
        return answer

    async def Reached(self, request: pb.Reachable, context: Any) -> pb.Nothing:
        """Note whom an edge could dial."""
        self._hub.note_reachable(await self._require_member(context, request.epoch), request)
        return pb.Nothing()

    async def Final(self, request: pb.FinalFigures, context: Any) -> pb.Nothing:
        """Take an edge's final figures."""
        self._hub.take_final(await self._require_member(context, request.epoch), request)
        return pb.Nothing()

    async def Beat(self, request: pb.Pulse, context: Any) -> pb.Nothing:
        """Take a heartbeat."""
        member = await self._require_member(context, request.epoch)
        self._hub.mark_seen(member)
        if member.is_ready and not member.is_drained:
            member.doing = _sanitize(request.doing)
        return pb.Nothing()

    async def Leave(self, request: pb.Goodbye, context: Any) -> pb.Nothing:
        """Note that an edge leaves of its own accord."""
        name = await self._access.require_edge(context)
        if (member := self._hub.membership.find(name)) is not None:
            self._hub.mark_left(member, _sanitize(request.why) or "it said goodbye", for_good=True)
        return pb.Nothing()

    async def Renew(self, request: pb.SigningRequest, context: Any) -> pb.Certificate:
        """Sign a new certificate for the node that calls."""
        name = await self._access.require_edge(context)
        if self._identity_store is None:
            await refuse(context, grpc.StatusCode.UNIMPLEMENTED, "This coordinator has no authority to sign with.")
        try:
            signed = self._identity_store.renew(NodeId(EDGE_ROLE, name), request.csr)
        except HatdfedError as error:
            await refuse(context, grpc.StatusCode.INVALID_ARGUMENT, str(error))
        _log.info("renewed the certificate of %s", name)
        return pb.Certificate(certificate=signed)

    async def _require_member(self, context: Any, epoch: int) -> EdgeMember:
        name = await self._access.require_edge(context)
        member = self._hub.membership.find(name)
        if epoch != self._hub.epoch or member is None:
            await refuse(context, grpc.StatusCode.ABORTED, f"{name} speaks of an earlier start; it has to join again.")
        return member

    def _peers_to_copy(self, member: EdgeMember) -> list[pb.Neighbour]:
        """Return peers whose model a late joiner may copy; none before the first round."""
        if self._hub.next_round == 0:
            return []
        others = [other for other in self._hub.membership.members if other.is_ready and other.address]
        return [describe_neighbour(other, dial=True) for other in others if other is not member][:8]


class OperationService(OperationServicer):
    """The calls that the coordinator's operator may make."""

    def __init__(self, hub: EdgeHub, access: AccessControl, status: Callable[[], dict[str, Any]]) -> None:
        self._hub = hub
        self._access = access
        self._status = status

    async def Status(self, request: pb.Nothing, context: Any) -> pb.StatusText:
        """Return the status of the run."""
        await self._access.require_operator(context)
        return pb.StatusText(json=json.dumps(self._status()))

    async def Drain(self, request: pb.NodeName, context: Any) -> pb.StatusText:
        """Dismiss one edge after its round."""
        await self._access.require_operator(context)
        member = self._hub.membership.find(request.name)
        if member is None:
            await refuse(context, grpc.StatusCode.NOT_FOUND, f"There is no server called {request.name!r} in this run.")
        try:
            self._hub.drain(member)
        except RunFolderError as error:
            await refuse(context, grpc.StatusCode.UNAVAILABLE, str(error))
        return pb.StatusText(json=json.dumps(self._status()))

    async def Stop(self, request: pb.Nothing, context: Any) -> pb.Nothing:
        """Stop the coordinator; the run can go on later."""
        await self._access.require_operator(context)
        self._hub.stop_requested.set()
        return pb.Nothing()
