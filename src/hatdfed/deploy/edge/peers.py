"""Calls to other edges (`peer_service` answers them): models are pushed and fetched until they have arrived."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Container, Generator
from contextlib import closing
from typing import Any

import grpc

from hatdfed.deploy.edge.round_mailbox import EARLY, RoundMailbox
from hatdfed.deploy.edge.transfers import CURRENT_MODEL, MOVED, Incoming, Outgoing, ReceivedFrames, SentFrames
from hatdfed.deploy.failpoints import failpoint
from hatdfed.deploy.identity.names import EDGE_ROLE, NodeId
from hatdfed.deploy.protocol import hatdfed_pb2 as pb
from hatdfed.deploy.protocol.hatdfed_pb2_grpc import PeerStub
from hatdfed.deploy.relay.relay_client import RelayClient
from hatdfed.deploy.transport.callers import DENIED
from hatdfed.deploy.transport.endpoints import Endpoints
from hatdfed.deploy.transport.frames import MAX_SENDS, SLOW, IncomingMessage, collect_chunks, read_header
from hatdfed.errors import HatdfedError, IdentityError, WireError

_log = logging.getLogger("hatdfed.deploy.edge")
_ASK_SECONDS = 10.0
_BROKEN_OFF = ("stalled", "cut-short", MOVED)  # after which a transfer goes on
_RETIRE_SECONDS = 600.0  # that calls may still take on a retired channel
_IDLE_TIMES = 2.0  # the idle time: for so long a peer that does not answer is called again


class Retries:
    """Says how long a transfer that breaks off is tried again: as long as it gets further."""

    def __init__(self, until: float, idle_seconds: float) -> None:
        self._until = until
        self._patience = _IDLE_TIMES * idle_seconds
        self._last_moved = time.monotonic()
        self._reached = 0  # bytes that were there at the receiver after the best attempt
        self._wasted = 0  # attempts since then that sent something in vain
        self.count = 0

    @property
    def is_allowed(self) -> bool:
        """Whether another attempt may send anything."""
        return self._wasted < MAX_SENDS

    def note_reached(self, num_bytes: int) -> None:
        """Note how many bytes are at the receiver; more than before make up for failures."""
        if num_bytes > self._reached:
            self._reached, self._wasted = num_bytes, 0

    def note_failure(self, *, has_sent: bool) -> None:
        """Note that an attempt has failed, perhaps after it had sent something."""
        self.count += 1
        if has_sent:
            self._wasted += 1
            self._last_moved = time.monotonic()

    async def wait(self, *, is_early: bool = False) -> bool:
        """Wait a little; returns whether to try again: longer for a peer whose round has not begun than for others."""
        if not is_early and time.monotonic() > self._last_moved + self._patience:
            return False
        await asyncio.sleep(0.2 + 0.6 * random.random())  # noqa: S311 (so that not all try again at once)
        return time.monotonic() < self._until


class Peers:
    """Calls to other edges, over channels that are kept open."""

    def __init__(
        self,
        endpoints: Endpoints,
        mailbox: RoundMailbox,
        idle_seconds: float,
        denied: Container[str] = (),
        relay: RelayClient | None = None,
    ) -> None:
        """Peers that are `denied`, as of the moment, are sent nothing and asked for nothing."""
        self._endpoints = endpoints
        self._denied = denied
        self._mailbox = mailbox
        self._idle_seconds = idle_seconds
        self._relay = relay
        self._channels: dict[str, tuple[str, grpc.aio.Channel]] = {}  # by name: address and channel
        self._retiring: dict[grpc.aio.Channel, asyncio.Task[None]] = {}

    @property
    def is_relayed(self) -> bool:
        """Whether peers can call this edge through the relay."""
        return self._relay is not None and self._relay.is_usable

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
        """Send the own model to a receiver; if the transfer breaks off, it goes on from where it stopped."""
        retries, is_early = Retries(until, self._idle_seconds), False
        while True:
            outgoing, before = None, 0.0
            try:
                outgoing = await self._mailbox.make_message(receiver.index, t, until)
                stub, before = self._stub(receiver), outgoing.sent.share
                may_be_there = outgoing.record.reached or self._mailbox.is_resumed
                offset = await self._ask_how_far(stub, outgoing) if may_be_there else 0
                retries.note_reached(offset)
                if not retries.is_allowed:
                    return
                failpoint("before-push")
                answer = await self._push_rest(stub, receiver.name, outgoing, offset, until)
            except grpc.aio.AioRpcError as error:
                level = logging.DEBUG if retries.count else logging.WARNING  # the first failure is enough to know
                about = {"node": receiver.name}
                _log.log(level, "round %d did not reach %s: %s", t, receiver.name, _describe(error), extra=about)
                is_early = False
                retries.note_failure(has_sent=outgoing is not None and outgoing.sent.share > before)
            except HatdfedError as error:
                _log.warning("round %d was not sent to %s: %s", t, receiver.name, error, extra={"node": receiver.name})
                return
            else:
                if answer.accepted or answer.reason == "duplicate":
                    await self._mailbox.mark_delivered(t, receiver.index)
                if answer.accepted or answer.reason not in (EARLY, "damaged", *_BROKEN_OFF):
                    return
                is_early = answer.reason == EARLY
                retries.note_failure(has_sent=not is_early)
            if not await retries.wait(is_early=is_early):
                return

    async def _push_rest(self, stub: Any, name: str, outgoing: Outgoing, offset: int, until: float) -> pb.Received:
        """Send a message from an offset on."""
        rest, delivered = self._unless_denied(name, outgoing.make_frames(offset)), False
        frames = SentFrames(self._mailbox.transfers, rest, offset=offset, reached=outgoing.record.reached)
        try:
            answer: pb.Received = await stub.Push(frames, timeout=max(until - time.monotonic(), 0.1))
            delivered = answer.accepted
        finally:
            frames.count_end(delivered=delivered)
        return answer

    async def _ask_how_far(self, stub: Any, outgoing: Outgoing) -> int:
        """Ask how much of a message the receiver has; nothing, if it does not know the question."""
        try:
            answer = await stub.HowFar(outgoing.header, timeout=_ASK_SECONDS)
        except grpc.aio.AioRpcError as error:
            if error.code() != grpc.StatusCode.UNIMPLEMENTED:
                raise
            return 0
        return int(answer.offset) if 0 <= answer.offset <= outgoing.packed.size else 0

    async def pull(self, sender: pb.Neighbour, t: int, until: float) -> None:
        """Fetch the model of a sender that cannot reach this edge."""
        mailbox = self._mailbox
        try:
            message = await self._fetch(mailbox.incoming, sender, t, until)
            received = await mailbox.check(message.data, t, sender.index)
            await mailbox.deliver(t, sender.index, received, message.data)
            await self._confirm(sender, t, message, until)
        except (WireError, IdentityError) as error:
            mailbox.count_refusal(error.reason, sender.name)
            _log.warning("refused the model of %s: %s", sender.name, error, extra={"node": sender.name})
            if error.reason == SLOW:
                await mailbox.notice_slow_sender()
        except grpc.aio.AioRpcError as error:
            about = {"node": sender.name}
            _log.warning("round %d was not fetched from %s: %s", t, sender.name, _describe(error), extra=about)

    async def copy_model(self, peer: pb.Neighbour, seconds: float) -> bytearray:
        """Fetch a peer's current model."""
        incoming = self._mailbox.incoming.make_another()
        return (await self._fetch(incoming, peer, CURRENT_MODEL, time.monotonic() + seconds)).data

    async def _fetch(self, incoming: Incoming, sender: pb.Neighbour, t: int, until: float) -> IncomingMessage:
        """Fetch a message, from where it broke off if that happens; raises the error of the last attempt."""
        retries = Retries(until, self._idle_seconds)
        while True:
            is_early, before = False, incoming.count_bytes(sender.index)
            try:
                return await self._fetch_rest(incoming, sender, t, until)
            except WireError as error:
                if error.reason not in ("damaged", *_BROKEN_OFF):
                    raise
                failure: HatdfedError | grpc.aio.AioRpcError = error
            except grpc.aio.AioRpcError as error:
                if error.code() == grpc.StatusCode.FAILED_PRECONDITION:
                    raise
                failure, is_early = error, error.code() == grpc.StatusCode.ABORTED
                if not retries.count:
                    about = {"node": sender.name}
                    _log.warning(
                        "round %d could not be fetched from %s: %s", t, sender.name, _describe(error), extra=about
                    )
            reached = incoming.count_bytes(sender.index)
            retries.note_failure(has_sent=reached != before or isinstance(failure, WireError))
            retries.note_reached(reached)
            if not retries.is_allowed or not await retries.wait(is_early=is_early):
                raise failure

    async def _confirm(self, sender: pb.Neighbour, t: int, message: IncomingMessage, until: float) -> None:
        """Tell a sender that its model has arrived; if that is not possible, nothing is lost but its time."""
        wanted = pb.Wanted(
            run=self._mailbox.run, round=t, digest=message.digest, offset=len(message.data), confirms=True
        )
        retries = Retries(until, self._idle_seconds)
        while message.digest:
            try:
                async for _ in self._stub(sender).Pull(wanted, timeout=_ASK_SECONDS):
                    pass
                return
            except grpc.aio.AioRpcError as error:
                if error.code() == grpc.StatusCode.FAILED_PRECONDITION or not await retries.wait():
                    return

    async def _fetch_rest(self, incoming: Incoming, sender: pb.Neighbour, t: int, until: float) -> IncomingMessage:
        known = incoming.find(sender.index)
        wanted = pb.Wanted(run=self._mailbox.run, round=t, confirms=True)
        if known is not None:
            wanted.digest, wanted.offset = known.digest, known.filled
        call = self._stub(sender).Pull(wanted, timeout=max(until - time.monotonic(), 0.1))
        stream, delivered = ReceivedFrames(self._mailbox.transfers, aiter(call)), False
        try:
            header = await read_header(stream, max(until - time.monotonic(), 0.1))  # it may still be training
            message = await incoming.begin(sender.index, header, self._mailbox.max_message_bytes)
            rate = incoming.get_rate(sender.index)
            await incoming.run_stream(
                sender.index, collect_chunks(stream, message, rate, idle_seconds=self._idle_seconds)
            )
            # Read to the end: only by that a sender of version 0.1 knows that its model was delivered.
            async with asyncio.timeout(self._idle_seconds):
                if await anext(stream, None) is not None:
                    raise WireError("too-long", "A transfer went on after its announced end.")
            incoming.take(sender.index, message)
            delivered = True
            return message
        except TimeoutError:
            raise WireError("stalled", "A transfer did not end.") from None
        finally:
            stream.count_end(delivered=delivered)
            call.cancel()

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

    def _unless_denied(self, name: str, frames: Generator[pb.Frame, None, None]) -> Generator[pb.Frame]:
        """Yield frames for a peer; they end early if it is locked out meanwhile, so that it gets no whole model."""
        with closing(frames):
            for frame in frames:
                if name in self._denied:
                    return
                yield frame

    def _stub(self, peer: pb.Neighbour) -> Any:
        if peer.name in self._denied:
            raise IdentityError(DENIED, f"{peer.name} is on the deny-list.")
        node, address = NodeId(EDGE_ROLE, peer.name), peer.address
        if peer.relayed:
            if self._relay is None:
                raise IdentityError("no-relay", f"{peer.name} is to be called through a relay, but there is none.")
            address = self._relay.find_address(node)
        known = self._channels.get(peer.name)
        if known is not None and known[0] != address:
            self._retire(peer.name)  # it has moved
            known = None
        if known is None:
            known = address, self._endpoints.open_channel(address, node)
            self._channels[peer.name] = known
        return PeerStub(known[1])


def _describe(error: grpc.aio.AioRpcError) -> str:
    return f"{error.code().name}, {error.details()}"
