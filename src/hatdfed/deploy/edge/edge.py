"""An edge server from start to end: join, get ready, watch for orders, leave.

A coordinator that is away is waited for: the edge keeps its model, goes on with the round it is in, and joins again.
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
from hatdfed.deploy.edge.coordinator_link import CALL_SECONDS, REFUSALS, CoordinatorLink
from hatdfed.deploy.edge.diagnosis import wrong_kind_of_line
from hatdfed.deploy.edge.first_model import first_state, packed_model
from hatdfed.deploy.edge.order_handler import OrderHandler
from hatdfed.deploy.edge.peers import Peers, PeerService
from hatdfed.deploy.edge.renewal import renew_when_due
from hatdfed.deploy.edge.round_mailbox import RoundMailbox
from hatdfed.deploy.edge.round_runner import RoundRunner
from hatdfed.deploy.edge.setup import OutfitMaker
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
    """Where this edge is in the network."""

    coordinator: str  # host:port
    listen: str = ""  # host:port, port 0 for any; empty: nobody can dial this edge
    advertise: str = ""  # what others dial; as listened, if empty
    patience: float = 600.0  # seconds that a coordinator may be away
    join_address: tuple[str, int] | None = None  # where to ask why a certificate is refused


class RefusedError(HatdfedError):
    """The coordinator does not want this edge, and says why; or it is gone."""


class Edge:
    """One edge process."""

    def __init__(self, options: EdgeOptions, endpoints: Endpoints, store: EdgeStore, make_outfit: OutfitMaker) -> None:
        self._options = options
        self._endpoints = endpoints
        self._store = store
        self._make_outfit = make_outfit
        self._line = CoordinatorLink()
        self._process = secrets.token_hex(8)  # tells this start of an edge from another one with the same name
        self._duty: OrderHandler | None = None
        self.leave_requested = asyncio.Event()

    async def serve(self) -> str:
        """Take part until sent home; returns why it ended."""
        with self._store.lock():
            return await self._serve()

    async def _serve(self) -> str:
        server = self._endpoints.make_server()
        address = self._address(server)
        renewing = asyncio.ensure_future(renew_when_due(self._endpoints, self._line, self._dial_anew))
        staying = asyncio.ensure_future(self._come_back_until_sent_home(server, address))
        leaving = asyncio.ensure_future(self.leave_requested.wait())
        try:
            await asyncio.wait({staying, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if staying.done():
                return staying.result()
            await self._line.ask("Leave", pb.Goodbye(why="asked to leave"), _GOODBYE_SECONDS)
            return "asked to leave"
        finally:
            tasks = (renewing, staying, leaving)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if self._duty is not None:
                await self._duty.end()
            await server.stop(grace=1.0)

    async def _come_back_until_sent_home(self, server: grpc.aio.Server, address: str) -> str:
        clock = asyncio.get_running_loop().time
        seen = clock()
        while True:
            try:
                async with self._endpoints.open_channel(self._options.coordinator, COORDINATOR) as channel:
                    self._line.stub = CoordinationStub(channel)
                    duty = await self._join(server, address)
                    try:
                        why = await self._watch(duty)
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
                    await self._ask_why()
                    _log.warning("the coordinator is away (%s); trying again", error.code().name)
            await asyncio.sleep(0.3 + 1.5 * random.random())  # noqa: S311 (so that not all come at once)

    async def _ask_why(self) -> None:
        """A handshake that fails gives no reason; the front desk does."""
        identity = self._endpoints.identity
        if reason := await wrong_kind_of_line(self._options.coordinator, is_secure=identity is not None):
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
            _log.info("the front desk cannot be asked: %s", error)
            return
        if reason is not None:
            raise RefusedError(f"The coordinator refuses this edge: {reason}")

    def _address(self, server: grpc.aio.Server) -> str:
        """Open the port, so that its number can be told; calls are answered once the edge is ready."""
        if not self._options.listen:
            return ""
        port = self._endpoints.listen(server, self._options.listen)
        return self._options.advertise or f"{self._options.listen.rpartition(':')[0]}:{port}"

    async def _join(self, server: grpc.aio.Server, address: str) -> OrderHandler:
        run = await self._known_run()
        hello = pb.Hello(protocol=PROTOCOL, version=__version__, address=address, run=run, process=self._process)
        welcome = await self._line.stub.Join(hello, timeout=CALL_SECONDS)
        if self._duty is None:
            self._duty = await self._get_ready(server, welcome)
        elif welcome.run != self._duty.exchange.run:
            raise RefusedError(
                f"The coordinator now plays run {welcome.run}. Start this edge again to take part in it."
            )
        elif welcome.index != self._duty.exchange.index:
            raise RefusedError("The coordinator gives this edge another place than before. Start it again.")
        self._line.epoch = welcome.epoch
        return self._duty

    async def _known_run(self) -> str:
        """Whose model this edge has."""
        if self._duty is not None:
            return self._duty.exchange.run
        kept = await asyncio.to_thread(self._store.load)
        return "" if kept is None else kept.run

    async def _get_ready(self, server: grpc.aio.Server, welcome: pb.Welcome) -> OrderHandler:
        config = Config.model_validate_json(welcome.config)
        outfit = await asyncio.to_thread(self._make_outfit, config, welcome.index)
        exchange = RoundMailbox(welcome.run, config.codec, welcome.index, outfit.program)
        peers = Peers(self._endpoints, exchange, welcome.idle_seconds)
        kept = await first_state(outfit, self._store, welcome, peers)
        player = RoundRunner(outfit.program, outfit.source, exchange, peers, self._store, kept, self._line.give_up)
        if self._options.listen:
            service = PeerService(
                self._endpoints, exchange, welcome.idle_seconds, lambda: packed_model(player.server, exchange)
            )
            add_PeerServicer_to_server(service, server)
            await server.start()
        self._line.epoch = welcome.epoch
        duty = OrderHandler(outfit, player, exchange, peers, self._line)
        duty.begin(welcome.beat_seconds)
        return duty

    async def _watch(self, duty: OrderHandler) -> str | None:
        """Obey until sent home, which has a reason; None when the line is cut."""
        call = self._line.stub.Watch(pb.Watching(epoch=self._line.epoch))
        obeying = asyncio.ensure_future(self._obey(duty, call))
        refused = asyncio.ensure_future(self._line.is_refused.wait())
        try:
            await asyncio.wait({obeying, refused}, return_when=asyncio.FIRST_COMPLETED)
            if obeying.done():
                return obeying.result()
            raise RefusedError(f"The coordinator refuses this edge: {self._line.refusal}")
        finally:
            obeying.cancel()
            refused.cancel()
            call.cancel()
            await asyncio.gather(obeying, refused, return_exceptions=True)

    async def _obey(self, duty: OrderHandler, call: Any) -> str | None:
        await asyncio.wait_for(call.initial_metadata(), CALL_SECONDS)
        await duty.report_ready()
        async for order in call:
            if (why := await duty.obey(order)) is not None:
                return why
        return None

    def _dial_anew(self) -> None:
        """A new certificate: connections to peers are made anew with it."""
        if self._duty is not None:
            self._duty.peers.renew()
