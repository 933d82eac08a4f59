"""Models between edges: the service that takes and gives them, and the calls that bring and fetch them.

Whoever can dial the other does: a sender pushes to a receiver that it can reach, and is asked by one that it cannot.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc

from hatdfed.errors import HatdfedError, IdentityError, WireError
from hatdfed.fleets.post import Received, accept
from hatdfed.net.ends import Ends
from hatdfed.net.failpoints import failpoint
from hatdfed.net.identity.names import EDGE_ROLE, Node
from hatdfed.net.protocol import hatdfed_pb2 as pb
from hatdfed.net.protocol.hatdfed_pb2_grpc import PeerServicer, PeerStub
from hatdfed.net.transfer import collect, first_frame, frames
from hatdfed.net.wire import Buffer, message_overhead
from hatdfed.node.exchange import Exchange

_log = logging.getLogger("hatdfed.node")
_AT_ONCE = 4  # transfers into this edge; more would only take more memory
_TRIES = 2
_CURRENT = -1  # the round of a model that a late joiner asks for

OwnModel = Callable[[], list[Buffer]]


class PeerService(PeerServicer):
    """What other edges may ask of this one."""

    def __init__(self, ends: Ends, exchange: Exchange, idle_seconds: float, own_model: OwnModel) -> None:
        self._ends = ends
        self._exchange = exchange
        self._idle_seconds = idle_seconds
        self._own_model = own_model
        self._room = asyncio.Semaphore(_AT_ONCE)
        self._turn = asyncio.Lock()  # models are checked one by one: checking takes room of its own

    async def Push(self, stream: AsyncIterator[pb.Frame], context: Any) -> pb.Received:
        """Take a model, or say in a word why not."""
        try:
            parcel = await first_frame(stream, self._idle_seconds)
            caller = self._ends.caller(context)
            await self._push(parcel, caller.name, stream)
        except (WireError, IdentityError) as error:
            self._exchange.refused[error.reason] += 1
            _log.warning("refused a model: %s", error)
            return pb.Received(accepted=False, reason=error.reason)
        return pb.Received(accepted=True)

    async def Pull(self, request: pb.Wanted, context: Any) -> AsyncIterator[pb.Frame]:
        """Give the own model, of a round or as it is."""
        try:
            caller = self._ends.caller(context)
            parts = await self._wanted(request, caller.name)
        except HatdfedError as error:
            _log.warning("refused to give a model: %s", error)
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        size = sum(map(len, parts))
        parcel = pb.Parcel(run=request.run, round=request.round, sender=self._exchange.index, size=size)
        for frame in frames(parcel, parts):
            yield frame
        if request.round != _CURRENT:
            await self._exchange.arrived(self._exchange.receiver_named(caller.name))

    async def Probe(self, request: pb.Nothing, context: Any) -> pb.Nothing:
        """Here."""
        return pb.Nothing()

    async def _push(self, parcel: pb.Parcel, name: str, stream: AsyncIterator[pb.Frame]) -> None:
        exchange = self._exchange
        if parcel.run != exchange.run:
            raise WireError("foreign", f"{name} sent a model of another run.")
        await exchange.round_begun(parcel.round, time.monotonic() + self._idle_seconds)
        sender = exchange.sender_named(name)
        if sender in exchange.mailbox:
            raise WireError("duplicate", f"The model of {name} is already here.")
        async with self._room:
            data = await collect(stream, parcel.size, limit=_limit(exchange), idle_seconds=self._idle_seconds)
            failpoint("model-received")
            async with self._turn:
                received = await believed(exchange, data, parcel.round, sender)
        await exchange.deliver(parcel.round, sender, received)

    async def _wanted(self, request: pb.Wanted, name: str) -> list[Buffer]:
        exchange = self._exchange
        if request.run != exchange.run:
            raise WireError("foreign", f"{name} wants a model of another run.")
        if request.round == _CURRENT:
            return self._own_model()
        order = await exchange.round_begun(request.round, time.monotonic() + self._idle_seconds)
        receiver = exchange.receiver_named(name)
        return await exchange.message_for(receiver, request.round, time.monotonic() + order.seconds)


async def believed(exchange: Exchange, data: Buffer, t: int, sender: int) -> Received:
    """The model behind the bytes, checked off the event loop; raises `WireError` for what is refused."""
    program, server = exchange.program, exchange.server
    known = None if server is None else server.known_of.get(sender)
    num_params = program.learner.num_params
    return await asyncio.to_thread(
        accept, data, exchange.mark, t=t, sender=sender, codec=program.codec, num_params=num_params, known=known
    )


class Peers:
    """Calls to other edges, over channels that are kept."""

    def __init__(self, ends: Ends, exchange: Exchange, idle_seconds: float) -> None:
        self._ends = ends
        self._exchange = exchange
        self._idle_seconds = idle_seconds
        self._channels: dict[tuple[str, str], grpc.aio.Channel] = {}

    async def close(self) -> None:
        """Hang up everywhere; the next call dials anew, with the certificate of that day."""
        channels, self._channels = list(self._channels.values()), {}
        for channel in channels:
            await channel.close()

    async def push(self, receiver: pb.Neighbour, t: int, until: float) -> None:
        """Bring the own model to a receiver; what fails is tried once more."""
        exchange = self._exchange
        for attempt in range(_TRIES):
            try:
                parts = await exchange.message_for(receiver.index, t, until)
                parcel = pb.Parcel(run=exchange.run, round=t, sender=exchange.index, size=sum(map(len, parts)))
                stub, left = self._stub(receiver), until - time.monotonic()
                failpoint("before-push")
                answer = await stub.Push(frames(parcel, parts), timeout=max(left, 0.1))
            except grpc.aio.AioRpcError as error:
                _log.warning("round %d did not reach %s: %s", t, receiver.name, _words(error))
                await asyncio.sleep(0.5 + random.random())  # noqa: S311 (so that not all try again at once)
                continue
            except HatdfedError as error:
                _log.warning("round %d was not sent to %s: %s", t, receiver.name, error)
                return
            if answer.accepted or answer.reason == "duplicate":
                await exchange.arrived(receiver.index)
            if answer.accepted or answer.reason != "damaged" or attempt + 1 == _TRIES:
                return

    async def pull(self, sender: pb.Neighbour, t: int, until: float) -> None:
        """Fetch the model of a sender that cannot reach this edge."""
        exchange = self._exchange
        for _ in range(_TRIES):
            try:
                data = await self._fetch(sender, t, until)
                await exchange.deliver(t, sender.index, await believed(exchange, data, t, sender.index))
                return
            except WireError as error:
                exchange.refused[error.reason] += 1
                _log.warning("refused the model of %s: %s", sender.name, error)
                return
            except grpc.aio.AioRpcError as error:
                _log.warning("round %d could not be had from %s: %s", t, sender.name, _words(error))
                await asyncio.sleep(0.5 + random.random())  # noqa: S311

    async def copy(self, peer: pb.Neighbour, seconds: float) -> bytearray:
        """A peer's model as it is."""
        return await self._fetch(peer, _CURRENT, time.monotonic() + seconds)

    async def probe(self, peers: list[pb.Neighbour], seconds: float = 3.0) -> tuple[list[int], list[int]]:
        """Who can be dialled, and who cannot."""
        room = asyncio.Semaphore(8)

        async def can_be_dialled(peer: pb.Neighbour) -> bool:
            async with room:
                try:
                    await self._stub(peer).Probe(pb.Nothing(), timeout=seconds)
                except (grpc.aio.AioRpcError, HatdfedError):
                    return False
                return True

        answers = await asyncio.gather(*(can_be_dialled(peer) for peer in peers))
        yes = [peer.index for peer, answer in zip(peers, answers, strict=True) if answer]
        return yes, [peer.index for peer in peers if peer.index not in yes]

    async def _fetch(self, sender: pb.Neighbour, t: int, until: float) -> bytearray:
        wanted = pb.Wanted(run=self._exchange.run, round=t)
        call = self._stub(sender).Pull(wanted, timeout=max(until - time.monotonic(), 0.1))
        try:
            stream = aiter(call)
            parcel = await first_frame(stream, max(until - time.monotonic(), 0.1))  # it may still be training
            return await collect(stream, parcel.size, limit=_limit(self._exchange), idle_seconds=self._idle_seconds)
        finally:
            call.cancel()

    def _stub(self, peer: pb.Neighbour) -> Any:
        key = (peer.name, peer.address)
        if key not in self._channels:
            self._channels[key] = self._ends.channel(peer.address, Node(EDGE_ROLE, peer.name))
        return PeerStub(self._channels[key])


def _limit(exchange: Exchange) -> int:
    """No message of this run is longer."""
    return 4 * exchange.program.learner.num_params + message_overhead()


def _words(error: grpc.aio.AioRpcError) -> str:
    return f"{error.code().name}, {error.details()}"
