"""The edge's process from start to end: join, get ready, handle orders, leave.

While the coordinator is away, the edge keeps its model, goes on with the round it plays, and tries to join again.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc

from hatdfed.deploy.coordinator.services import PROTOCOL
from hatdfed.deploy.edge.coordinator_link import (
    CALL_SECONDS,
    REFUSALS,
    CoordinatorLink,
    OrderStream,
    diagnose_connection,
    renew_certificate_when_due,
)
from hatdfed.deploy.edge.metrics import make_figures
from hatdfed.deploy.edge.order_handler import OrderHandler
from hatdfed.deploy.edge.peer_service import PeerService
from hatdfed.deploy.edge.peers import Peers
from hatdfed.deploy.edge.presence import CoordinatorPresence
from hatdfed.deploy.edge.round_mailbox import RoundMailbox
from hatdfed.deploy.edge.round_meter import RoundMeter
from hatdfed.deploy.edge.round_runner import RoundRunner
from hatdfed.deploy.edge.setup import MakeSetup, load_first_state, make_limits, pack_model, read_settings
from hatdfed.deploy.edge.store import EdgeStore
from hatdfed.deploy.edge.transfers import Incoming
from hatdfed.deploy.identity.certificates import format_time
from hatdfed.deploy.identity.deny import DeniedPeers
from hatdfed.deploy.identity.join import explain_refusal, report_refusal
from hatdfed.deploy.identity.names import COORDINATOR, relay_id
from hatdfed.deploy.identity.renewal import renew_by_proof
from hatdfed.deploy.monitoring.metrics import EDGE_METRICS, PROCESS_METRICS, FiguresCollector
from hatdfed.deploy.monitoring.process_figures import ProcessFigures
from hatdfed.deploy.monitoring.server import serve_metrics
from hatdfed.deploy.protocol import hatdfed_pb2 as pb
from hatdfed.deploy.protocol.hatdfed_pb2_grpc import add_PeerServicer_to_server
from hatdfed.deploy.relay.relay_client import RelayClient
from hatdfed.deploy.transport.callers import CallerCheck
from hatdfed.deploy.transport.endpoints import Endpoints
from hatdfed.errors import HatdfedError, IdentityError
from hatdfed.version import __version__

_log = logging.getLogger("hatdfed.deploy.edge")
_GOODBYE_SECONDS = 3.0
_REGISTER_SECONDS = 5.0  # that an edge waits for the relay before it says that it is ready
_RETRY_SECONDS = 5.0  # between attempts to renew a certificate while the coordinator is away
_RENEWABLE = ("expired", "too-early")


@dataclass(frozen=True)
class EdgeOptions:
    """The addresses of an edge and of its coordinator."""

    coordinator: str  # host:port
    listen: str = ""  # host:port, port 0 for any; empty: no other edge can dial this one
    advertise: str = ""  # what other edges dial; empty: the address that it listens at
    patience: float = 600.0  # seconds that a coordinator may be away
    relay: str = ""  # host:port at which this edge reaches the relay; empty: where the coordinator says
    join_address: tuple[str, int] | None = None  # the join server, for a certificate that has expired or is refused
    metrics: tuple[str, int] | None = None  # host and port for Prometheus


class RefusedError(HatdfedError):
    """The coordinator refuses this edge, or has been away for too long."""


class Edge:
    """One edge process."""

    def __init__(self, options: EdgeOptions, endpoints: Endpoints, store: EdgeStore, make_setup: MakeSetup) -> None:
        self._options = options
        self._endpoints = endpoints
        self._store = store
        self._make_setup = make_setup
        self._link = CoordinatorLink()
        self._process = secrets.token_hex(8)  # tells this start of an edge from another one with the same name
        self._denied = DeniedPeers()
        self._connection_seconds = 0.0  # after which the connection to the coordinator is replaced
        self._handler: OrderHandler | None = None
        self._presence = CoordinatorPresence()
        self.metrics_port = 0  # once metrics are served
        self._relay: RelayClient | None = None
        self.leave_requested = asyncio.Event()

    async def serve(self) -> str:
        """Take part until dismissed; returns why it ended."""
        with self._store.lock():
            async with self._serve_metrics():
                return await self._serve()

    @asynccontextmanager
    async def _serve_metrics(self) -> AsyncIterator[None]:
        """Serve metrics from the start on, so that an edge that waits for its coordinator can be seen to wait."""
        if self._options.metrics is None:
            yield
            return
        collectors = (
            FiguresCollector(EDGE_METRICS, lambda: make_figures(self._presence, self._link, self._handler)),
            FiguresCollector(PROCESS_METRICS, ProcessFigures(self._endpoints, self._store.folder).read),
        )
        async with serve_metrics(*self._options.metrics, *collectors) as self.metrics_port:
            _log.info("metrics at port %d", self.metrics_port)
            yield

    async def _serve(self) -> str:
        await self._wait_for_valid_certificate()
        server = self._endpoints.make_server()
        address = self._listen(server)
        renewing = asyncio.ensure_future(renew_certificate_when_due(self._endpoints, self._link, self._reconnect))
        playing = asyncio.ensure_future(self._rejoin_until_dismissed(server, address))
        leaving = asyncio.ensure_future(self.leave_requested.wait())
        try:
            await asyncio.wait({playing, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if playing.done():
                return playing.result()
            await self._link.call("Leave", pb.Goodbye(why="asked to leave"), _GOODBYE_SECONDS)
            return "asked to leave"
        finally:
            tasks = (renewing, playing, leaving)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if self._handler is not None:
                await self._handler.stop()
            if self._relay is not None:
                await self._relay.close()
            await server.stop(grace=1.0)

    async def _rejoin_until_dismissed(self, server: grpc.aio.Server, address: str) -> str:
        clock = asyncio.get_running_loop().time
        seen, is_expired = clock(), False
        while True:
            try:
                await self._wait_for_valid_certificate()
                self._link.is_renewed.clear()
                self._link.connect(self._open_channel())
                handler = await self._join(server, address)
                self._presence.mark_joined()
                is_expired = False
                try:
                    why = await self._watch(handler)
                finally:
                    seen = clock()
                    self._presence.mark_lost()
                if why is not None:
                    return why
            except grpc.aio.AioRpcError as error:
                if error.code() == grpc.StatusCode.UNAUTHENTICATED and not is_expired:
                    is_expired = True  # what the connection has shown; a new one shows the present certificate
                    continue
                if error.code() in REFUSALS:
                    raise RefusedError(f"The coordinator refuses this edge: {error.details()}") from None
                if clock() - seen > self._options.patience:
                    raise RefusedError(
                        f"The coordinator at {self._options.coordinator} has not answered for "
                        f"{self._options.patience:g} seconds ({error.details()}). "
                        "Start this edge again when it is back."
                    ) from None
                if error.code() == grpc.StatusCode.ALREADY_EXISTS:
                    self._presence.mark_away(str(error.details()))
                else:
                    await self._raise_if_refused()
                    self._presence.mark_away(f"the coordinator is away ({error.code().name})")
            finally:
                await self._link.disconnect()
            await asyncio.sleep(0.3 + 1.5 * random.random())  # noqa: S311 (so that not all edges come at once)

    def _open_channel(self) -> grpc.aio.Channel:
        return self._endpoints.open_channel(self._options.coordinator, COORDINATOR)

    async def _raise_if_refused(self) -> None:
        """Raise `RefusedError` if that is why a connection failed: TLS gives no reason, but the join server does."""
        identity = self._endpoints.identity
        if reason := await diagnose_connection(self._options.coordinator, is_secure=identity is not None):
            if identity is None and self._options.join_address is not None:
                await report_refusal(*self._options.join_address, "no-certificate")
            raise RefusedError(reason)
        if identity is None or self._options.join_address is None:
            return
        try:
            reason = await explain_refusal(*self._options.join_address, identity)
        except IdentityError as error:
            if error.reason == "not-the-coordinator":
                raise RefusedError(
                    f"{error} The authority in {identity.ca_file} did not sign for it: if the address is right, join "
                    "again with a token of this deployment."
                ) from None
            if not self._presence.is_outage_known:
                _log.info("the join server cannot be asked: %s", error)
            return
        if reason is not None:
            await self._renew_by_proof(f"The coordinator refuses this edge: {reason}")

    async def _wait_for_valid_certificate(self) -> None:
        """Renew a certificate that is not valid now; waits for a coordinator that is away."""
        identity, clock = self._endpoints.identity, asyncio.get_running_loop().time
        end = clock() + self._options.patience
        while identity is not None and (refused := identity.find_refusal()) is not None:
            if refused.reason not in _RENEWABLE or self._options.join_address is None:
                raise refused
            why = await self._renew_by_proof(str(refused))
            if why and clock() > end:
                raise RefusedError(f"{refused} It could not be renewed: {why}")
            if why:
                await asyncio.sleep(_RETRY_SECONDS)

    async def _renew_by_proof(self, refusal: str) -> str:
        """Renew a certificate that is refused; returns why that cannot be done now, or raises `RefusedError`."""
        identity, address = self._endpoints.identity, self._options.join_address
        if identity is None or address is None:
            raise RefusedError(refusal)
        try:
            renewed = await renew_by_proof(*address, identity)
        except IdentityError as error:
            if error.reason == "unreachable":
                self._presence.mark_away(f"the certificate is not valid, and could not be renewed yet: {error}")
                return str(error)
            raise RefusedError(f"{refusal} It was not renewed: {error}") from None
        _log.warning("the certificate was not valid; it is renewed until %s", format_time(renewed.expires))
        self._reconnect()
        return ""

    def _listen(self, server: grpc.aio.Server) -> str:
        """Open the port and return the address for other edges; calls are answered once this edge is ready."""
        if not self._options.listen:
            return ""
        port = self._endpoints.listen(server, self._options.listen)
        return self._options.advertise or f"{self._options.listen.rpartition(':')[0]}:{port}"

    async def _join(self, server: grpc.aio.Server, address: str) -> OrderHandler:
        run = await self._find_own_run()
        hello = pb.Hello(protocol=PROTOCOL, version=__version__, address=address, run=run, process=self._process)
        welcome = await self._link.stub.Join(hello, timeout=CALL_SECONDS)
        self._denied.update(welcome.denied)
        self._connection_seconds = welcome.connection_seconds
        if self._handler is None:
            self._handler = await self._prepare(server, welcome)
        elif welcome.run != self._handler.mailbox.run:
            raise RefusedError(
                f"The coordinator now executes run {welcome.run}. Start this edge again to take part in it."
            )
        elif welcome.index != self._handler.mailbox.index:
            raise RefusedError("The coordinator gives this edge another index than before. Start it again.")
        await self._handler.go_back_if_ahead(welcome.round)
        self._link.epoch = welcome.epoch
        return self._handler

    async def _find_own_run(self) -> str:
        """Return the run that this edge has a model of; empty if it has none."""
        if self._handler is not None:
            return self._handler.mailbox.run
        saved = await asyncio.to_thread(self._store.load)
        return "" if saved is None else saved.run

    async def _prepare(self, server: grpc.aio.Server, welcome: pb.Welcome) -> OrderHandler:
        """Set up program, data, model and services for the run that the coordinator plays."""
        config = read_settings(welcome)
        setup = await asyncio.to_thread(self._make_setup, config, welcome.index)
        limits = await asyncio.to_thread(make_limits, config, setup.program, welcome.index)
        incoming = Incoming(welcome.idle_seconds, welcome.least_bytes_per_second)
        mailbox = RoundMailbox(welcome.run, config.codec, welcome.index, setup.program, limits, incoming)
        relay = await self._register_at_relay(welcome)
        peers = Peers(self._endpoints, mailbox, welcome.idle_seconds, self._denied, relay)
        saved = await load_first_state(setup, self._store, welcome, peers, limits)
        runner = RoundRunner(
            setup.program,
            setup.source,
            mailbox,
            peers,
            self._store,
            saved,
            self._link.report_lost_peer,
            RoundMeter(setup.meter),
        )
        if relay is not None:
            self._endpoints.listen(server, relay.listen_address)
        if self._options.listen or relay is not None:
            check = CallerCheck(self._endpoints, self._denied)
            service = PeerService(check, mailbox, welcome.idle_seconds, lambda: pack_model(runner.server, mailbox))
            add_PeerServicer_to_server(service, server)
            await server.start()
        self._link.epoch = welcome.epoch
        handler = OrderHandler(setup, runner, mailbox, peers, self._link, self._denied)
        handler.start_heartbeat(welcome.beat_seconds)
        return handler

    async def _register_at_relay(self, welcome: pb.Welcome) -> RelayClient | None:
        """Wait at the relay for calls from now on, if there is one; without it this edge has fewer links."""
        if not welcome.HasField("relay"):
            return None
        if self._relay is None:
            host, _, port = (self._options.relay or welcome.relay.address).rpartition(":")
            relay, address = relay_id(welcome.relay.name), (host.strip("[]"), int(port))
            self._relay = RelayClient(self._endpoints, relay, address, self._denied)
            self._relay.start()
        await self._relay.wait_until_registered(_REGISTER_SECONDS)
        return self._relay

    async def _watch(self, handler: OrderHandler) -> str | None:
        """Handle orders until dismissed; returns why, or None if the connection was lost."""
        stream = OrderStream(self._link, self._open_channel, self._connection_seconds)
        handling = asyncio.ensure_future(self._handle_orders(handler, stream))
        replacing = asyncio.ensure_future(stream.replace_when_due())
        refused = asyncio.ensure_future(self._link.is_refused.wait())
        try:
            await asyncio.wait({handling, refused}, return_when=asyncio.FIRST_COMPLETED)
            if handling.done():
                return handling.result()
            raise RefusedError(f"The coordinator refuses this edge: {self._link.refusal}")
        finally:
            tasks = (handling, replacing, refused)
            for task in tasks:
                task.cancel()
            stream.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _handle_orders(self, handler: OrderHandler, stream: OrderStream) -> str | None:
        await stream.open()
        await handler.report_ready()
        async for order in stream.read():
            if (why := await handler.handle(order)) is not None:
                return why
        return None

    def _reconnect(self) -> None:
        """Connect again with a new certificate, to the coordinator and to peers."""
        self._link.is_renewed.set()
        if self._handler is not None:
            self._handler.peers.reconnect()
