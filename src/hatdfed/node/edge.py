"""An edge server from start to end: join, get ready, watch for orders, leave.

A coordinator that is away is waited for: the edge keeps its model, goes on with the round it is in, and joins again.
"""

from __future__ import annotations

import asyncio
import logging
import random
from dataclasses import dataclass

import grpc

from hatdfed.config import Config
from hatdfed.errors import HatdfedError, IdentityError
from hatdfed.net.ends import Ends
from hatdfed.net.identity.join import explain
from hatdfed.net.identity.names import COORDINATOR
from hatdfed.net.protocol import hatdfed_pb2 as pb
from hatdfed.net.protocol.hatdfed_pb2_grpc import CoordinationStub, add_PeerServicer_to_server
from hatdfed.net.services import PROTOCOL
from hatdfed.node.duty import CALL_SECONDS, Duty, Line
from hatdfed.node.exchange import Exchange
from hatdfed.node.first_model import first_state, packed_model
from hatdfed.node.outfit import OutfitMaker
from hatdfed.node.peers import Peers, PeerService
from hatdfed.node.player import Player
from hatdfed.node.renewing import renew_when_due
from hatdfed.node.store import EdgeStore
from hatdfed.version import __version__

_log = logging.getLogger("hatdfed.node")
_REFUSALS = {
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.FAILED_PRECONDITION,
}


@dataclass(frozen=True)
class Place:
    """Where this edge is in the network."""

    coordinator: str  # host:port
    listen: str = ""  # host:port, port 0 for any; empty: nobody can dial this edge
    advertise: str = ""  # what others dial; as listened, if empty
    patience: float = 600.0  # seconds that a coordinator may be away
    desk: tuple[str, int] | None = None  # where to ask why a certificate is refused


class RefusedError(HatdfedError):
    """The coordinator does not want this edge, and says why; or it is gone."""


class Edge:
    """One edge process."""

    def __init__(self, place: Place, ends: Ends, store: EdgeStore, make_outfit: OutfitMaker) -> None:
        self._place = place
        self._ends = ends
        self._store = store
        self._make_outfit = make_outfit
        self._line = Line()
        self._duty: Duty | None = None
        self.leave_asked = asyncio.Event()

    async def serve(self) -> str:
        """Take part until sent home; returns why it ended."""
        server = self._ends.server()
        renewing = asyncio.ensure_future(renew_when_due(self._ends, lambda: self._line.stub, self._hang_up))
        try:
            return await self._come_back_until_sent_home(server, self._address(server))
        finally:
            renewing.cancel()
            if self._duty is not None:
                await self._duty.end()
            await server.stop(grace=1.0)

    async def _come_back_until_sent_home(self, server: grpc.aio.Server, address: str) -> str:
        clock = asyncio.get_running_loop().time
        seen = clock()
        while True:
            try:
                async with self._ends.channel(self._place.coordinator, COORDINATOR) as channel:
                    self._line.stub = CoordinationStub(channel)
                    duty = await self._join(server, address)
                    why = await self._watch(duty)
                    if why is not None:
                        return why
                    seen = clock()
            except grpc.aio.AioRpcError as error:
                if error.code() in _REFUSALS:
                    raise RefusedError(f"The coordinator refuses this edge: {error.details()}") from None
                if clock() - seen > self._place.patience:
                    raise RefusedError(
                        f"The coordinator at {self._place.coordinator} has not answered for "
                        f"{self._place.patience:g} seconds ({error.details()}). Start this edge again when it is back."
                    ) from None
                await self._ask_why()
                _log.warning("the coordinator is away (%s); trying again", error.code().name)
            await asyncio.sleep(0.3 + 1.5 * random.random())  # noqa: S311 (so that not all come at once)

    async def _ask_why(self) -> None:
        """A handshake that fails gives no reason; the front desk does."""
        if self._ends.identity is None or self._place.desk is None:
            return
        try:
            reason = await explain(*self._place.desk, self._ends.identity)
        except IdentityError as error:
            _log.info("the front desk cannot be asked: %s", error)
            return
        if reason is not None:
            raise RefusedError(f"The coordinator refuses this edge: {reason}")

    def _address(self, server: grpc.aio.Server) -> str:
        """Open the port, so that its number can be told; calls are answered once the edge is ready."""
        if not self._place.listen:
            return ""
        port = self._ends.listen(server, self._place.listen)
        return self._place.advertise or f"{self._place.listen.rpartition(':')[0]}:{port}"

    async def _join(self, server: grpc.aio.Server, address: str) -> Duty:
        kept = await asyncio.to_thread(self._store.load)
        hello = pb.Hello(
            protocol=PROTOCOL,
            version=__version__,
            address=address,
            run="" if kept is None else kept.run,
        )
        welcome = await self._line.stub.Join(hello, timeout=CALL_SECONDS)
        if self._duty is None:
            self._duty = await self._get_ready(server, welcome)
        elif welcome.run != self._duty.exchange.run:
            raise RefusedError(
                f"The coordinator now plays run {welcome.run}. Start this edge again to take part in it."
            )
        self._line.epoch = welcome.epoch
        return self._duty

    async def _get_ready(self, server: grpc.aio.Server, welcome: pb.Welcome) -> Duty:
        config = Config.model_validate_json(welcome.config)
        outfit = await asyncio.to_thread(self._make_outfit, config, welcome.index)
        exchange = Exchange(welcome.run, config.codec, welcome.index, outfit.program)
        peers = Peers(self._ends, exchange, welcome.idle_seconds)
        kept = await first_state(outfit, self._store, welcome, peers)
        player = Player(outfit.program, outfit.source, exchange, peers, self._store, kept)
        if self._place.listen:
            service = PeerService(
                self._ends, exchange, welcome.idle_seconds, lambda: packed_model(player.server, exchange)
            )
            add_PeerServicer_to_server(service, server)
            await server.start()
        self._line.epoch = welcome.epoch
        duty = Duty(outfit, player, exchange, peers, self._line)
        duty.begin(welcome.beat_seconds)
        return duty

    async def _watch(self, duty: Duty) -> str | None:
        """Obey until sent home, which has a reason; None when the line is cut."""
        call = self._line.stub.Watch(pb.Watching(epoch=self._line.epoch))
        leave = asyncio.ensure_future(self.leave_asked.wait())
        orders = aiter(call)
        try:
            await call.initial_metadata()
            await duty.report_ready()
            while True:
                order = asyncio.ensure_future(anext(orders, None))
                await asyncio.wait({order, leave}, return_when=asyncio.FIRST_COMPLETED)
                if not order.done():
                    order.cancel()
                    await self._line.stub.Leave(pb.Goodbye(why="asked to leave"), timeout=CALL_SECONDS)
                    return "asked to leave"
                if (told := order.result()) is None:
                    return None
                if (why := await duty.obey(told)) is not None:
                    return why
        finally:
            leave.cancel()
            call.cancel()

    async def _hang_up(self) -> None:
        """A new certificate: connections to peers are made anew with it."""
        if self._duty is not None:
            await self._duty.peers.close()
