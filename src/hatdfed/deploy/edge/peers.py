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

from hatdfed.deploy.edge.round_mailbox import EARLY, Outgoing, RoundMailbox
from hatdfed.deploy.failpoints import failpoint
from hatdfed.deploy.identity.names import EDGE_ROLE, NodeId
from hatdfed.deploy.protocol import hatdfed_pb2 as pb
from hatdfed.deploy.protocol.hatdfed_pb2_grpc import PeerServicer, PeerStub
from hatdfed.deploy.transport.endpoints import Endpoints
from hatdfed.deploy.transport.frames import MAX_SENDS, collect_chunks, read_header
from hatdfed.errors import HatdfedError, IdentityError, WireError
from hatdfed.server.exchange import Received, accept
from hatdfed.server.message import Buffer, compute_overhead

_log = logging.getLogger("hatdfed.deploy.edge")
_AT_ONCE = 4  # transfers into this edge; more would only take more memory
_STUBBORN = 2.0  # times the idle time: so long a peer that does not answer is called again
_CURRENT = -1  # the round of a model that a late joiner asks for
_RETIRE_SECONDS = 600.0  # that calls may still take on a connection which is used no more

OwnModel = Callable[[], list[Buffer]]


class PeerService(PeerServicer):
    """What other edges may ask of this one."""

    def __init__(self, endpoints: Endpoints, exchange: RoundMailbox, idle_seconds: float, own_model: OwnModel) -> None:
        self._endpoints = endpoints
        self._exchange = exchange
        self._idle_seconds = idle_seconds
        self._own_model = own_model
        self._room = asyncio.Semaphore(_AT_ONCE)
        self._turn = asyncio.Lock()  # models are checked one by one: checking takes room of its own

    async def Push(self, stream: AsyncIterator[pb.Frame], context: Any) -> pb.Received:
        """Take a model, or say in a word why not."""
        try:
            caller = self._endpoints.identify_caller(context)
            parcel = await read_header(stream, self._idle_seconds)
            await self._push(parcel, caller.name, stream)
        except (WireError, IdentityError) as error:
            self._exchange.refused[error.reason] += 1
            _log.warning("refused a model: %s", error)
            return pb.Received(accepted=False, reason=error.reason)
        return pb.Received(accepted=True)

    async def Pull(self, request: pb.Wanted, context: Any) -> AsyncIterator[pb.Frame]:
        """Give the own model, of a round or as it is."""
        exchange = self._exchange
        try:
            caller = self._endpoints.identify_caller(context)
            outgoing = await self._wanted(request, caller.name)
        except (WireError, IdentityError) as error:
            exchange.refused[error.reason] += 1
            _log.warning("refused to give a model: %s", error)
            try_again = error.reason == EARLY
            code = grpc.StatusCode.ABORTED if try_again else grpc.StatusCode.FAILED_PRECONDITION
            await context.abort(code, str(error))
        parcel = pb.Parcel(run=request.run, round=request.round, sender=exchange.index, size=outgoing.size)
        for frame in outgoing.frames(parcel):
            yield frame
        if request.round != _CURRENT:
            await exchange.arrived(request.round, outgoing.sent.receiver)

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
        await exchange.room_for_model(parcel.round, exchange.until)
        try:
            async with asyncio.timeout(exchange.until - time.monotonic()), self._room:
                data = await collect_chunks(
                    stream, parcel.size, limit=_limit(exchange), idle_seconds=self._idle_seconds
                )
        except TimeoutError:
            raise WireError("late", f"The model of {name} was still on its way when the round ended.") from None
        failpoint("model-received")
        async with self._turn:
            received = await believed(exchange, data, parcel.round, sender)
        await exchange.deliver(parcel.round, sender, received)

    async def _wanted(self, request: pb.Wanted, name: str) -> Outgoing:
        exchange = self._exchange
        if request.run != exchange.run:
            raise WireError("foreign", f"{name} wants a model of another run.")
        if request.round == _CURRENT:
            parts = await asyncio.to_thread(self._own_model)
            return Outgoing(parts, sum(map(len, parts)), 0.0, pb.Sent())
        order = await exchange.round_begun(request.round, time.monotonic() + self._idle_seconds)
        receiver = exchange.receiver_named(name)
        return await exchange.message_for(receiver, request.round, time.monotonic() + order.seconds)


async def believed(exchange: RoundMailbox, data: Buffer, t: int, sender: int) -> Received:
    """The model behind the bytes, checked off the event loop; raises `WireError` for what is refused."""
    codec, num_params = exchange.program.codec, exchange.program.learner.num_params
    try:
        return await asyncio.to_thread(
            accept, data, exchange.mark, t=t, sender=sender, codec=codec, num_params=num_params
        )
    except (TypeError, ValueError, KeyError, RuntimeError) as error:  # whatever else strangers think of
        raise WireError("not-a-message", f"A message cannot be read ({type(error).__name__}).") from None


class Peers:
    """Calls to other edges, over channels that are kept."""

    def __init__(self, endpoints: Endpoints, exchange: RoundMailbox, idle_seconds: float) -> None:
        self._endpoints = endpoints
        self._exchange = exchange
        self._idle_seconds = idle_seconds
        self._channels: dict[str, tuple[str, grpc.aio.Channel]] = {}  # by name: address and channel
        self._retiring: dict[grpc.aio.Channel, asyncio.Task[None]] = {}

    async def close(self) -> None:
        """Hang up everywhere."""
        self.renew()
        retiring, self._retiring = self._retiring, {}
        for channel, task in retiring.items():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await channel.close()

    def renew(self) -> None:
        """From now on calls dial anew, with the certificate of the day; those that are under way may end."""
        for name in list(self._channels):
            self._retire(name)

    def _retire(self, name: str) -> None:
        _, channel = self._channels.pop(name)
        task = asyncio.ensure_future(channel.close(_RETIRE_SECONDS))
        self._retiring[channel] = task
        task.add_done_callback(lambda _: self._retiring.pop(channel, None))

    async def push(self, receiver: pb.Neighbour, t: int, until: float) -> None:
        """Bring the own model to a receiver."""
        exchange, began, wasted = self._exchange, time.monotonic(), 0
        is_early, level = False, logging.WARNING
        while wasted < MAX_SENDS:
            try:
                outgoing = await exchange.message_for(receiver.index, t, until)
                parcel = pb.Parcel(run=exchange.run, round=t, sender=exchange.index, size=outgoing.size)
                stub, before = self._stub(receiver), outgoing.sent.share
                failpoint("before-push")
                answer = await stub.Push(outgoing.frames(parcel), timeout=max(until - time.monotonic(), 0.1))
            except grpc.aio.AioRpcError as error:
                _log.log(level, "round %d did not reach %s: %s", t, receiver.name, _words(error))
                level = logging.DEBUG  # it is called again; once is enough to know
                is_early, wasted = False, wasted + (outgoing.sent.share > before)
            except HatdfedError as error:
                _log.warning("round %d was not sent to %s: %s", t, receiver.name, error)
                return
            else:
                if answer.accepted or answer.reason == "duplicate":
                    await exchange.arrived(t, receiver.index)
                if answer.accepted or answer.reason not in (EARLY, "damaged"):
                    return
                is_early, wasted = answer.reason == EARLY, wasted + (answer.reason == "damaged")
            if not await self._is_worth_another_try(began, until, is_early=is_early):
                return

    async def pull(self, sender: pb.Neighbour, t: int, until: float) -> None:
        """Fetch the model of a sender that cannot reach this edge."""
        exchange, began, level = self._exchange, time.monotonic(), logging.WARNING
        while True:
            try:
                data = await self._fetch(sender, t, until)
                await exchange.deliver(t, sender.index, await believed(exchange, data, t, sender.index))
                return
            except (WireError, IdentityError) as error:
                exchange.refused[error.reason] += 1
                _log.warning("refused the model of %s: %s", sender.name, error)
                return
            except grpc.aio.AioRpcError as error:
                _log.log(level, "round %d could not be had from %s: %s", t, sender.name, _words(error))
                level = logging.DEBUG
                is_early = error.code() == grpc.StatusCode.ABORTED
                if error.code() == grpc.StatusCode.FAILED_PRECONDITION or not await self._is_worth_another_try(
                    began, until, is_early=is_early
                ):
                    return

    async def _is_worth_another_try(self, began: float, until: float, *, is_early: bool) -> bool:
        """After a little while. A peer that has not heard of the round yet will; one that is silent need not."""
        await asyncio.sleep(0.2 + 0.6 * random.random())  # noqa: S311 (so that not all try again at once)
        return time.monotonic() < (until if is_early else min(until, began + _STUBBORN * self._idle_seconds))

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
            parcel = await read_header(stream, max(until - time.monotonic(), 0.1))  # it may still be training
            data = await collect_chunks(
                stream, parcel.size, limit=_limit(self._exchange), idle_seconds=self._idle_seconds
            )
            # To the very end: only a call that ends well tells the sender that its model has arrived.
            async with asyncio.timeout(self._idle_seconds):
                if await anext(stream, None) is not None:
                    raise WireError("too-long", "A transfer went on after its end.")
            return data
        except TimeoutError:
            raise WireError("stalled", "A transfer did not come to its end.") from None
        finally:
            call.cancel()

    def _stub(self, peer: pb.Neighbour) -> Any:
        known = self._channels.get(peer.name)
        if known is not None and known[0] != peer.address:
            self._retire(peer.name)  # it has moved
            known = None
        if known is None:
            known = peer.address, self._endpoints.open_channel(peer.address, NodeId(EDGE_ROLE, peer.name))
            self._channels[peer.name] = known
        return PeerStub(known[1])


def _limit(exchange: RoundMailbox) -> int:
    """No message of this run is longer."""
    return 4 * exchange.program.learner.num_params + compute_overhead()


def _words(error: grpc.aio.AioRpcError) -> str:
    return f"{error.code().name}, {error.details()}"
