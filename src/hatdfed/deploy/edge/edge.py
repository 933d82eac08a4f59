"""The edge's process from start to end: join, get ready, handle orders, leave.

While the coordinator is away, the edge keeps its model, goes on with the round it plays, and tries to join again.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
from dataclasses import dataclass
from typing import Any

import grpc

from hatdfed.deploy.coordinator.services import PROTOCOL
from hatdfed.deploy.edge.coordinator_link import (
    CALL_SECONDS,
    REFUSALS,
    CoordinatorLink,
    diagnose_connection,
    renew_certificate_when_due,
)
from hatdfed.deploy.edge.order_handler import OrderHandler
from hatdfed.deploy.edge.peers import Peers, PeerService
from hatdfed.deploy.edge.round_mailbox import RoundMailbox
from hatdfed.deploy.edge.round_runner import RoundRunner
from hatdfed.deploy.edge.setup import MakeSetup, load_first_state, pack_model
from hatdfed.deploy.edge.store import EdgeStore
from hatdfed.deploy.identity.join import explain_refusal, report_refusal
from hatdfed.deploy.identity.names import COORDINATOR
from hatdfed.deploy.protocol import hatdfed_pb2 as pb
from hatdfed.deploy.protocol.hatdfed_pb2_grpc import CoordinationStub, add_PeerServicer_to_server
from hatdfed.deploy.transport.endpoints import Endpoints
from hatdfed.errors import HatdfedError, IdentityError
from hatdfed.setup.config import Config
from hatdfed.version import __version__

_log = logging.getLogger("hatdfed.deploy.edge")
_GOODBYE_SECONDS = 3.0


@dataclass(frozen=True)
class EdgeOptions:
    """The addresses of an edge and of its coordinator."""

    coordinator: str  # host:port
    listen: str = ""  # host:port, port 0 for any; empty: no other edge can dial this one
    advertise: str = ""  # what other edges dial; empty: the address that it listens at
    patience: float = 600.0  # seconds that a coordinator may be away
    join_address: tuple[str, int] | None = None  # the join server, to ask why a certificate is refused


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
        self._handler: OrderHandler | None = None
        self.leave_requested = asyncio.Event()

    async def serve(self) -> str:
        """Take part until dismissed; returns why it ended."""
        with self._store.lock():
            return await self._serve()

    async def _serve(self) -> str:
        server = self._endpoints.make_server()
        address = self._listen(server)
        renewing = asyncio.ensure_future(renew_certificate_when_due(self._endpoints, self._link, self._reconnect_peers))
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
            await server.stop(grace=1.0)

    async def _rejoin_until_dismissed(self, server: grpc.aio.Server, address: str) -> str:
        clock = asyncio.get_running_loop().time
        seen = clock()
        while True:
            try:
                async with self._endpoints.open_channel(self._options.coordinator, COORDINATOR) as channel:
                    self._link.stub = CoordinationStub(channel)
                    handler = await self._join(server, address)
                    try:
                        why = await self._watch(handler)
                    finally:
                        seen = clock()
                    if why is not None:
                        return why
            except grpc.aio.AioRpcError as error:
                if error.code() in REFUSALS:
                    raise RefusedError(f"The coordinator refuses this edge: {error.details()}") from None
                if clock() - seen > self._options.patience:
                    raise RefusedError(
                        f"The coordinator at {self._options.coordinator} has not answered for "
                        f"{self._options.patience:g} seconds ({error.details()}). "
                        "Start this edge again when it is back."
                    ) from None
                if error.code() == grpc.StatusCode.ALREADY_EXISTS:
                    _log.warning("%s", error.details())
                else:
                    await self._raise_if_refused()
                    _log.warning("the coordinator is away (%s); trying again", error.code().name)
            await asyncio.sleep(0.3 + 1.5 * random.random())  # noqa: S311 (so that not all edges come at once)

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
            _log.info("the join server cannot be asked: %s", error)
            return
        if reason is not None:
            raise RefusedError(f"The coordinator refuses this edge: {reason}")

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
        if self._handler is None:
            self._handler = await self._prepare(server, welcome)
        elif welcome.run != self._handler.mailbox.run:
            raise RefusedError(
                f"The coordinator now plays run {welcome.run}. Start this edge again to take part in it."
            )
        elif welcome.index != self._handler.mailbox.index:
            raise RefusedError("The coordinator gives this edge another index than before. Start it again.")
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
        config = Config.model_validate_json(welcome.config)
        setup = await asyncio.to_thread(self._make_setup, config, welcome.index)
        mailbox = RoundMailbox(welcome.run, config.codec, welcome.index, setup.program)
        peers = Peers(self._endpoints, mailbox, welcome.idle_seconds)
        saved = await load_first_state(setup, self._store, welcome, peers)
        runner = RoundRunner(
            setup.program, setup.source, mailbox, peers, self._store, saved, self._link.report_lost_peer
        )
        if self._options.listen:
            service = PeerService(
                self._endpoints, mailbox, welcome.idle_seconds, lambda: pack_model(runner.server, mailbox)
            )
            add_PeerServicer_to_server(service, server)
            await server.start()
        self._link.epoch = welcome.epoch
        handler = OrderHandler(setup, runner, mailbox, peers, self._link)
        handler.start_heartbeat(welcome.beat_seconds)
        return handler

    async def _watch(self, handler: OrderHandler) -> str | None:
        """Handle orders until dismissed; returns why, or None if the connection was lost."""
        call = self._link.stub.Watch(pb.Watching(epoch=self._link.epoch))
        handling = asyncio.ensure_future(self._handle_orders(handler, call))
        refused = asyncio.ensure_future(self._link.is_refused.wait())
        try:
            await asyncio.wait({handling, refused}, return_when=asyncio.FIRST_COMPLETED)
            if handling.done():
                return handling.result()
            raise RefusedError(f"The coordinator refuses this edge: {self._link.refusal}")
        finally:
            handling.cancel()
            refused.cancel()
            call.cancel()
            await asyncio.gather(handling, refused, return_exceptions=True)

    async def _handle_orders(self, handler: OrderHandler, call: Any) -> str | None:
        await asyncio.wait_for(call.initial_metadata(), CALL_SECONDS)
        await handler.report_ready()
        async for order in call:
            if (why := await handler.handle(order)) is not None:
                return why
        return None

    def _reconnect_peers(self) -> None:
        """Reconnect to peers with a new certificate."""
        if self._handler is not None:
            self._handler.peers.reconnect()
