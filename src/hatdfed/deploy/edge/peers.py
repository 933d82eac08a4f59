"""Transfers of models between edges: the service at each edge, and the calls to other edges.

Whoever can dial the other does: a sender pushes to a receiver that it can dial; otherwise the receiver pulls.
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
_MAX_INCOMING = 4  # transfers at a time; more would only take more memory
_RETRY_FACTOR = 2.0  # times the idle time: for so long a peer that does not answer is called again
_CURRENT_MODEL = -1  # in place of a round, when a late joiner asks for the current model
_RETIRE_SECONDS = 600.0  # that calls may still take on a retired channel

OwnModel = Callable[[], list[Buffer]]


class PeerService(PeerServicer):
    """The calls that other edges may make to this one."""

    def __init__(self, endpoints: Endpoints, mailbox: RoundMailbox, idle_seconds: float, own_model: OwnModel) -> None:
        self._endpoints = endpoints
        self._mailbox = mailbox
        self._idle_seconds = idle_seconds
        self._own_model = own_model
        self._incoming = asyncio.Semaphore(_MAX_INCOMING)
        self._checking = asyncio.Lock()  # models are checked one by one: checking takes memory of its own

    async def Push(self, stream: AsyncIterator[pb.Frame], context: Any) -> pb.Received:
        """Receive a model, or answer with the reason of refusal."""
        try:
            caller = self._endpoints.identify_caller(context)
            header = await read_header(stream, self._idle_seconds)
            await self._push(header, caller.name, stream)
        except (WireError, IdentityError) as error:
            self._mailbox.refused[error.reason] += 1
            _log.warning("refused a model: %s", error)
            return pb.Received(accepted=False, reason=error.reason)
        return pb.Received(accepted=True)

    async def Pull(self, request: pb.Wanted, context: Any) -> AsyncIterator[pb.Frame]:
        """Send the own model, of a round or the current one."""
        mailbox = self._mailbox
        try:
            caller = self._endpoints.identify_caller(context)
            outgoing = await self._find_outgoing(request, caller.name)
        except (WireError, IdentityError) as error:
            mailbox.refused[error.reason] += 1
            _log.warning("refused to give a model: %s", error)
            may_retry = error.reason == EARLY
            code = grpc.StatusCode.ABORTED if may_retry else grpc.StatusCode.FAILED_PRECONDITION
            await context.abort(code, str(error))
        header = pb.Parcel(run=request.run, round=request.round, sender=mailbox.index, size=outgoing.size)
        for frame in outgoing.make_frames(header):
            yield frame
        if request.round != _CURRENT_MODEL:
            await mailbox.mark_delivered(request.round, outgoing.sent.receiver)

    async def Probe(self, request: pb.Nothing, context: Any) -> pb.Nothing:
        """Answer, so that the caller knows that it can dial this edge."""
        return pb.Nothing()

    async def _push(self, header: pb.Parcel, name: str, stream: AsyncIterator[pb.Frame]) -> None:
        mailbox = self._mailbox
        if header.run != mailbox.run:
            raise WireError("foreign", f"{name} sent a model of another run.")
        await mailbox.wait_for_round(header.round, time.monotonic() + self._idle_seconds)
        sender = mailbox.find_sender(name)
        if sender in mailbox.received:
            raise WireError("duplicate", f"The model of {name} is already here.")
        await mailbox.wait_for_room(header.round, mailbox.until)
        try:
            async with asyncio.timeout(mailbox.until - time.monotonic()), self._incoming:
                data = await collect_chunks(
                    stream, header.size, limit=_max_message_bytes(mailbox), idle_seconds=self._idle_seconds
                )
        except TimeoutError:
            raise WireError("late", f"The model of {name} was still on its way when the round ended.") from None
        failpoint("model-received")
        async with self._checking:
            received = await check_message(mailbox, data, header.round, sender)
        await mailbox.deliver(header.round, sender, received)

    async def _find_outgoing(self, request: pb.Wanted, name: str) -> Outgoing:
        mailbox = self._mailbox
        if request.run != mailbox.run:
            raise WireError("foreign", f"{name} wants a model of another run.")
        if request.round == _CURRENT_MODEL:
            parts = await asyncio.to_thread(self._own_model)
            return Outgoing(parts, sum(map(len, parts)), 0.0, pb.Sent())
        order = await mailbox.wait_for_round(request.round, time.monotonic() + self._idle_seconds)
        receiver = mailbox.find_receiver(name)
        return await mailbox.make_message(receiver, request.round, time.monotonic() + order.seconds)


async def check_message(mailbox: RoundMailbox, data: Buffer, t: int, sender: int) -> Received:
    """Decode and check a message off the event loop; raises `WireError` if it is refused."""
    codec, num_params = mailbox.program.codec, mailbox.program.learner.num_params
    try:
        return await asyncio.to_thread(
            accept, data, mailbox.message_context, t=t, sender=sender, codec=codec, num_params=num_params
        )
    except (TypeError, ValueError, KeyError, RuntimeError) as error:  # malformed in some other way
        raise WireError("not-a-message", f"A message cannot be read ({type(error).__name__}).") from None


class Peers:
    """Calls to other edges, over channels that are kept open."""

    def __init__(self, endpoints: Endpoints, mailbox: RoundMailbox, idle_seconds: float) -> None:
        self._endpoints = endpoints
        self._mailbox = mailbox
        self._idle_seconds = idle_seconds
        self._channels: dict[str, tuple[str, grpc.aio.Channel]] = {}  # by name: address and channel
        self._retiring: dict[grpc.aio.Channel, asyncio.Task[None]] = {}

    async def close(self) -> None:
        """Close all channels."""
        self.reconnect()
        retiring, self._retiring = self._retiring, {}
        for channel, task in retiring.items():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await channel.close()

    def reconnect(self) -> None:
        """Use new channels, with the present certificate, from now on; calls in progress may end on the old ones."""
        for name in list(self._channels):
            self._retire(name)

    def _retire(self, name: str) -> None:
        _, channel = self._channels.pop(name)
        task = asyncio.ensure_future(channel.close(_RETIRE_SECONDS))
        self._retiring[channel] = task
        task.add_done_callback(lambda _: self._retiring.pop(channel, None))

    async def push(self, receiver: pb.Neighbour, t: int, until: float) -> None:
        """Send the own model to a receiver."""
        mailbox, began, wasted = self._mailbox, time.monotonic(), 0
        is_early, level = False, logging.WARNING
        while wasted < MAX_SENDS:
            try:
                outgoing = await mailbox.make_message(receiver.index, t, until)
                header = pb.Parcel(run=mailbox.run, round=t, sender=mailbox.index, size=outgoing.size)
                stub, before = self._stub(receiver), outgoing.sent.share
                failpoint("before-push")
                answer = await stub.Push(outgoing.make_frames(header), timeout=max(until - time.monotonic(), 0.1))
            except grpc.aio.AioRpcError as error:
                _log.log(level, "round %d did not reach %s: %s", t, receiver.name, _describe(error))
                level = logging.DEBUG  # for retries: the first failure is enough to know
                is_early, wasted = False, wasted + (outgoing.sent.share > before)
            except HatdfedError as error:
                _log.warning("round %d was not sent to %s: %s", t, receiver.name, error)
                return
            else:
                if answer.accepted or answer.reason == "duplicate":
                    await mailbox.mark_delivered(t, receiver.index)
                if answer.accepted or answer.reason not in (EARLY, "damaged"):
                    return
                is_early, wasted = answer.reason == EARLY, wasted + (answer.reason == "damaged")
            if not await self._is_worth_another_try(began, until, is_early=is_early):
                return

    async def pull(self, sender: pb.Neighbour, t: int, until: float) -> None:
        """Fetch the model of a sender that cannot reach this edge."""
        mailbox, began, level = self._mailbox, time.monotonic(), logging.WARNING
        while True:
            try:
                data = await self._fetch(sender, t, until)
                await mailbox.deliver(t, sender.index, await check_message(mailbox, data, t, sender.index))
                return
            except (WireError, IdentityError) as error:
                mailbox.refused[error.reason] += 1
                _log.warning("refused the model of %s: %s", sender.name, error)
                return
            except grpc.aio.AioRpcError as error:
                _log.log(level, "round %d could not be fetched from %s: %s", t, sender.name, _describe(error))
                level = logging.DEBUG
                is_early = error.code() == grpc.StatusCode.ABORTED
                if error.code() == grpc.StatusCode.FAILED_PRECONDITION or not await self._is_worth_another_try(
                    began, until, is_early=is_early
                ):
                    return

    async def _is_worth_another_try(self, began: float, until: float, *, is_early: bool) -> bool:
        """Wait a little; returns whether to try again: longer for a peer whose round has not begun than for others."""
        await asyncio.sleep(0.2 + 0.6 * random.random())  # noqa: S311 (so that not all try again at once)
        return time.monotonic() < (until if is_early else min(until, began + _RETRY_FACTOR * self._idle_seconds))

    async def copy_model(self, peer: pb.Neighbour, seconds: float) -> bytearray:
        """Fetch a peer's current model."""
        return await self._fetch(peer, _CURRENT_MODEL, time.monotonic() + seconds)

    async def probe(self, peers: list[pb.Neighbour], seconds: float = 3.0) -> tuple[list[int], list[int]]:
        """Try to dial peers; returns those that can be dialled and those that cannot."""
        slots = asyncio.Semaphore(8)

        async def can_dial(peer: pb.Neighbour) -> bool:
            async with slots:
                try:
                    await self._stub(peer).Probe(pb.Nothing(), timeout=seconds)
                except (grpc.aio.AioRpcError, HatdfedError):
                    return False
                return True

        answers = await asyncio.gather(*(can_dial(peer) for peer in peers))
        yes = [peer.index for peer, answer in zip(peers, answers, strict=True) if answer]
        return yes, [peer.index for peer in peers if peer.index not in yes]

    async def _fetch(self, sender: pb.Neighbour, t: int, until: float) -> bytearray:
        wanted = pb.Wanted(run=self._mailbox.run, round=t)
        call = self._stub(sender).Pull(wanted, timeout=max(until - time.monotonic(), 0.1))
        try:
            stream = aiter(call)
            header = await read_header(stream, max(until - time.monotonic(), 0.1))  # it may still be training
            data = await collect_chunks(
                stream, header.size, limit=_max_message_bytes(self._mailbox), idle_seconds=self._idle_seconds
            )
            # Read to the end: only a call that ends well tells the sender that its model was delivered.
            async with asyncio.timeout(self._idle_seconds):
                if await anext(stream, None) is not None:
                    raise WireError("too-long", "A transfer went on after its announced end.")
            return data
        except TimeoutError:
            raise WireError("stalled", "A transfer did not end.") from None
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


def _max_message_bytes(mailbox: RoundMailbox) -> int:
    """Return the length of the longest message of this run."""
    return 4 * mailbox.program.learner.num_params + compute_overhead()


def _describe(error: grpc.aio.AioRpcError) -> str:
    return f"{error.code().name}, {error.details()}"
