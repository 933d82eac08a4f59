"""The coordinator's gRPC services: they check who calls and pass the call to the hub.

A caller's name comes from its certificate. A refusal is logged here and sent to the caller, in the same words.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import AsyncIterator, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn

import grpc

from hatdfed.deploy.coordinator.edge_hub import LOST, EdgeHub
from hatdfed.deploy.coordinator.membership import EdgeMember, MovedTooSoonError, NameTakenError, describe_neighbour
from hatdfed.deploy.identity.certificates import format_time
from hatdfed.deploy.identity.deny import DenyList, compute_digest
from hatdfed.deploy.identity.identity_store import IdentityStore
from hatdfed.deploy.identity.names import COORDINATOR_ROLE, EDGE_ROLE, VIEWER_ROLE, NodeId
from hatdfed.deploy.protocol import hatdfed_pb2 as pb
from hatdfed.deploy.protocol.hatdfed_pb2_grpc import CoordinationServicer, OperationServicer
from hatdfed.deploy.transport.callers import DENIED, WRONG_ROLE, CallerCheck
from hatdfed.deploy.transport.endpoints import Caller, Endpoints, read_address
from hatdfed.errors import ConfigError, HatdfedError, IdentityError, RunFolderError
from hatdfed.setup.config import Config
from hatdfed.setup.versions import settings_for
from hatdfed.version import __version__

PROTOCOL = 1  # to be increased whenever an older edge or coordinator would misunderstand
_log = logging.getLogger("hatdfed.deploy.coordinator")
_caller: ContextVar[str] = ContextVar("caller", default="")  # of the call that is served, once it is known
_CHECK_SECONDS = 1.0  # between checks whether a caller that reads orders may still do so
_REPLACE_SHARE = 0.8  # of a connection's age at which an edge replaces it, before the server ends it
_ADDRESS = re.compile(
    r"(?!(unix|unix-abstract|vsock|ipv4|ipv6|dns):)([A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]):[0-9]{1,5}"
)
_LONGEST_RENEWAL_PAUSE = timedelta(minutes=1)  # of a member: an answer that was lost is asked for again
_RENEWAL_PAUSE_SHARE = 0.01  # of a certificate's lifetime, where that is less


@dataclass(frozen=True)
class AccessControl:
    """Checks who may call what."""

    endpoints: Endpoints
    deny_list: DenyList | None = None
    count_refusal: Callable[[str, str], None] = lambda reason, name: None

    @property
    def _check(self) -> CallerCheck:
        return CallerCheck(self.endpoints, self.deny_list or ())

    async def require_edge(self, context: Any) -> str:
        """Return the name of the edge that calls; any other caller is refused."""
        return (await self.require_edge_caller(context)).node.name

    async def require_edge_caller(self, context: Any) -> Caller:
        """Return the edge that calls; any other caller is refused."""
        return await self._require_role(context, EDGE_ROLE)

    async def require_operator(self, context: Any) -> None:
        """Refuse callers other than the coordinator's operator, who has its certificate."""
        await self._require_role(context, COORDINATOR_ROLE)

    async def require_reader(self, context: Any) -> None:
        """Refuse callers other than the operator and those who may only look."""
        await self._require_role(context, COORDINATOR_ROLE, VIEWER_ROLE)

    def find_refusal(self, context: Any) -> IdentityError | None:
        """Return why an edge that called a while ago may call no more; None if it may."""
        try:
            self._check.identify(context, EDGE_ROLE)
        except IdentityError as error:
            return error
        return None

    def denied_unless(self, digest: str) -> pb.DenyList | None:
        """Return the deny list for an edge, unless its own has this digest."""
        names = frozenset() if self.deny_list is None else self.deny_list.names()
        current = compute_digest(names)
        return None if digest == current else pb.DenyList(digest=current, names=sorted(names))

    async def _require_role(self, context: Any, *roles: str) -> Caller:
        try:
            caller = self._check.identify(context, *roles)
        except IdentityError as error:
            _caller.set(name := self._find_name(context))
            self.count_refusal(error.reason, name)
            await refuse_caller(context, error)
        _caller.set(caller.node.name)
        return caller

    def _find_name(self, context: Any) -> str:
        """Return the name of a caller that is refused; empty if it has none."""
        try:
            return self.endpoints.identify_caller(context).node.name
        except IdentityError:
            return ""


async def refuse_caller(context: Any, error: IdentityError) -> NoReturn:
    """End the call of somebody who may not make it."""
    is_known = error.reason in (DENIED, WRONG_ROLE)
    code = grpc.StatusCode.PERMISSION_DENIED if is_known else grpc.StatusCode.UNAUTHENTICATED
    await refuse(context, code, str(error))


async def refuse(context: Any, code: grpc.StatusCode, sentence: str) -> NoReturn:
    """Log a refusal and end the call with the same sentence."""
    who = {"node": name} if (name := _caller.get()) else {"address": read_address(context)}
    _log.warning("refused: %s", sentence, extra=who)
    await context.abort(code, sentence)
    raise AssertionError("abort does not return")


async def _next_order(orders: asyncio.Queue[pb.Order]) -> pb.Order | None:
    """Return the next order, or None if there is none for a while."""
    try:
        return await asyncio.wait_for(orders.get(), _CHECK_SECONDS)
    except TimeoutError:
        return None


def _sanitize(text: str) -> str:
    """Shorten what an edge sent to one printable line, for logs and tables."""
    return "".join(letter for letter in text[:80] if letter.isprintable())


def _describe_relay(setting: str | None) -> pb.RelayAddress | None:
    """Describe the relay of this deployment to an edge."""
    if setting is None:
        return None
    name, _, address = setting.partition("@")
    return pb.RelayAddress(name=name, address=address)


class RenewalLimit:
    """Says when a member may renew its certificate: signing is expensive and waits for the disk."""

    def __init__(self, lifetime: timedelta) -> None:
        self._pause = min(_LONGEST_RENEWAL_PAUSE, _RENEWAL_PAUSE_SHARE * lifetime)
        self._asked: dict[str, datetime] = {}

    def find_refusal(self, caller: Caller, now: datetime | None = None) -> str | None:
        """Note that a member asks for a renewal; returns why it has to wait, or None if it may renew.

        What counts is the certificate that it shows, not the newest that was signed: that one may have been lost.
        """
        name, at = caller.node.name, now or datetime.now(UTC)
        if caller.renews is not None and at < caller.renews:
            return f"The certificate of {name} is not due for renewal before {format_time(caller.renews)}."
        asked = self._asked.get(name)
        if asked is not None and asked <= at < asked + self._pause:
            return f"{name} has just renewed its certificate; it may do so again at {format_time(asked + self._pause)}."
        self._asked[name] = at
        return None


class CoordinationService(CoordinationServicer):
    """The calls that edges may make."""

    def __init__(
        self, hub: EdgeHub, access: AccessControl, run: str, config: Config, identity_store: IdentityStore | None
    ) -> None:
        self._hub = hub
        self._access = access
        self._run = run
        self._config = config
        self._identity_store = identity_store
        self._renewals = None if identity_store is None else RenewalLimit(identity_store.lifetime)

    async def Join(self, request: pb.Hello, context: Any) -> pb.Welcome:
        """Admit an edge to the run."""
        name = await self._access.require_edge(context)
        if request.protocol != PROTOCOL:
            self._hub.count_refusal("protocol", name)
            await refuse(
                context,
                grpc.StatusCode.FAILED_PRECONDITION,
                f"{name} runs hatdfed {_sanitize(request.version)} with protocol {request.protocol}, the coordinator "
                f"{__version__} with protocol {PROTOCOL}. Install the same version on both.",
            )
        hub = self._hub
        known = hub.membership.find(name)
        if known is not None and known.is_drained:
            hub.count_refusal("drained", name)
            await refuse(context, grpc.StatusCode.PERMISSION_DENIED, f"{name} has been drained from this run.")
        if request.address and not _ADDRESS.fullmatch(request.address):
            hub.count_refusal("bad-address", name)
            await refuse(
                context,
                grpc.StatusCode.FAILED_PRECONDITION,
                f"{name} says that others reach it at {_sanitize(request.address)}, which is no HOST:PORT.",
            )
        try:
            config = settings_for(_sanitize(request.version), self._config)
        except ConfigError as error:
            await refuse(context, grpc.StatusCode.FAILED_PRECONDITION, f"{name} cannot take part: {error}")
        try:
            member = hub.admit(name, request.address, request.process[:64])
        except NameTakenError as error:  # the edge tries again only while the other process may be dead
            taken, unsure = grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.ALREADY_EXISTS
            await refuse(context, taken if error.is_sure else unsure, str(error))
        except MovedTooSoonError as error:
            hub.count_refusal("moved-too-soon", name)
            await refuse(context, grpc.StatusCode.ALREADY_EXISTS, str(error))  # edges try again after this one
        except RunFolderError as error:
            await refuse(context, grpc.StatusCode.UNAVAILABLE, str(error))
        return pb.Welcome(
            run=self._run,
            epoch=hub.epoch,
            index=member.index,
            config=json.dumps(config),
            version=__version__,
            beat_seconds=hub.settings.beat_seconds,
            idle_seconds=hub.settings.idle_seconds,
            least_bytes_per_second=hub.settings.least_kbit_per_second * 1000 / 8,
            round=hub.next_round,
            relay=_describe_relay(hub.settings.relay),
            copy_from=self._peers_to_copy(member) if request.run != self._run else [],
            denied=self._access.denied_unless(""),
            connection_seconds=_REPLACE_SHARE * self._access.endpoints.connection_seconds,
        )

    async def Ready(self, request: pb.Prepared, context: Any) -> pb.Nothing:
        """Note that an edge has everything that it needs for rounds."""
        member = await self._require_member(context, request.epoch)
        try:
            reason = self._hub.mark_ready(member, request)
        except RunFolderError as error:
            await refuse(context, grpc.StatusCode.UNAVAILABLE, str(error))
        if reason:
            self._hub.count_refusal("other-model", member.name)
            await refuse(context, grpc.StatusCode.FAILED_PRECONDITION, reason)
        return pb.Nothing()

    async def Watch(self, request: pb.Watching, context: Any) -> AsyncIterator[pb.Order]:
        """Stream orders to an edge."""
        member = await self._require_member(context, request.epoch)
        orders = self._hub.open_orders(member)
        await context.send_initial_metadata(())  # now the edge may call Ready: it will miss no order
        refused: IdentityError | None = None
        try:
            while (refused := self._access.find_refusal(context)) is None:
                order = await _next_order(orders)
                if order is not None and order.epoch != self._hub.epoch:
                    return
                if order is not None:
                    yield order
            await refuse_caller(context, refused)
        finally:
            is_denied = refused is not None and refused.reason == DENIED
            self._hub.close_orders(member, orders, LOST if refused is None else str(refused), for_good=is_denied)

    async def Report(self, request: pb.Outcome, context: Any) -> pb.Received:
        """Take an edge's report of a round."""
        member = await self._require_member(context, request.epoch)
        answer = self._hub.take_report(member, request)
        if not answer.accepted:
            _log.warning(
                "refused: report of round %d by %s: %s",
                request.round,
                member.name,
                answer.reason,
                extra={"node": member.name},
            )
        return answer

    async def Reached(self, request: pb.Reachable, context: Any) -> pb.Nothing:
        """Note whom an edge could dial."""
        member = await self._require_member(context, request.epoch)
        if reason := self._hub.note_reachable(member, request):
            await refuse(context, grpc.StatusCode.INVALID_ARGUMENT, reason)
        return pb.Nothing()

    async def Final(self, request: pb.FinalFigures, context: Any) -> pb.Nothing:
        """Take an edge's final figures."""
        member = await self._require_member(context, request.epoch)
        if reason := self._hub.take_final(member, request):
            await refuse(context, grpc.StatusCode.INVALID_ARGUMENT, reason)
        return pb.Nothing()

    async def Beat(self, request: pb.Pulse, context: Any) -> pb.Heard:
        """Take a heartbeat."""
        member = await self._require_member(context, request.epoch)
        self._hub.mark_seen(member)
        self._hub.set_relayed(member, claimed=request.relayed)
        if member.is_ready and not member.is_drained:
            member.doing = _sanitize(request.doing)
        return pb.Heard(denied=self._access.denied_unless(request.denied))

    async def Leave(self, request: pb.Goodbye, context: Any) -> pb.Nothing:
        """Note that an edge leaves of its own accord."""
        name = await self._access.require_edge(context)
        if (member := self._hub.membership.find(name)) is not None:
            self._hub.mark_left(member, _sanitize(request.why) or "it said goodbye", for_good=True)
        return pb.Nothing()

    async def Renew(self, request: pb.SigningRequest, context: Any) -> pb.Certificate:
        """Sign a new certificate for the node that calls."""
        caller = await self._access.require_edge_caller(context)
        name = caller.node.name
        if self._identity_store is None or self._renewals is None:
            await refuse(context, grpc.StatusCode.UNIMPLEMENTED, "This coordinator has no authority to sign with.")
        if reason := self._renewals.find_refusal(caller):
            self._hub.count_refusal("renewed-too-soon", name)
            await refuse(context, grpc.StatusCode.ABORTED, reason)  # an edge tries again later
        try:
            # In a thread: the record of the certificate is flushed to disk.
            signed = await asyncio.to_thread(self._identity_store.renew, NodeId(EDGE_ROLE, name), request.csr)
        except HatdfedError as error:
            await refuse(context, grpc.StatusCode.INVALID_ARGUMENT, str(error))
        _log.info("renewed the certificate of %s", name, extra={"node": name})
        return pb.Certificate(certificate=signed)

    async def _require_member(self, context: Any, epoch: int) -> EdgeMember:
        name = await self._access.require_edge(context)
        member = self._hub.membership.find(name)
        if epoch != self._hub.epoch or member is None:
            await refuse(context, grpc.StatusCode.ABORTED, f"{name} speaks of an earlier start; it has to join again.")
        if self._hub.is_dismissed(member):
            self._hub.count_refusal("drained", name)
            # Not denied, as in `Join`: an edge that has yet to read the order to leave is to end in good order.
            await refuse(context, grpc.StatusCode.ABORTED, f"{name} has been drained from this run.")
        return member

    def _peers_to_copy(self, member: EdgeMember) -> list[pb.Neighbour]:
        """Return peers whose model a late joiner may copy; none before the first round."""
        if self._hub.next_round == 0:
            return []
        ready = [other for other in self._hub.membership.members if other.is_ready and other is not member]
        direct = [describe_neighbour(other, dial=True) for other in ready if other.address]
        relayed = [describe_neighbour(o, dial=True, relayed=True) for o in ready if o.is_relayed and not o.address]
        return [*direct, *relayed][:8]


class OperationService(OperationServicer):
    """The calls that the coordinator's operator may make; a viewer may ask for the status."""

    def __init__(self, hub: EdgeHub, access: AccessControl, status: Callable[[], dict[str, Any]]) -> None:
        self._hub = hub
        self._access = access
        self._status = status

    async def Status(self, request: pb.Nothing, context: Any) -> pb.StatusText:
        """Return the status of the run."""
        await self._access.require_reader(context)
        return pb.StatusText(json=json.dumps(self._status()))

    async def Drain(self, request: pb.NodeName, context: Any) -> pb.StatusText:
        """Dismiss one edge after its round."""
        return await self._change(request, context, self._hub.drain)

    async def Undrain(self, request: pb.NodeName, context: Any) -> pb.StatusText:
        """Let a drained edge take part again."""
        return await self._change(request, context, self._hub.undrain)

    async def _change(self, request: pb.NodeName, context: Any, change: Callable[[EdgeMember], None]) -> pb.StatusText:
        await self._access.require_operator(context)
        member = self._hub.membership.find(request.name)
        if member is None:
            await refuse(context, grpc.StatusCode.NOT_FOUND, f"There is no server called {request.name!r} in this run.")
        try:
            change(member)
        except RunFolderError as error:
            await refuse(context, grpc.StatusCode.UNAVAILABLE, str(error))
        return pb.StatusText(json=json.dumps(self._status()))

    async def Stop(self, request: pb.Nothing, context: Any) -> pb.Nothing:
        """Stop the coordinator; the run can go on later."""
        await self._access.require_operator(context)
        self._hub.stop_requested.set()
        return pb.Nothing()
