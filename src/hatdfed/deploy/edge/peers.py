"""Transfers of models between edges: the service at each edge, and the calls to other edges.

Whoever can dial the other does: a sender pushes to a receiver that it can dial; otherwise the receiver pulls. A
transfer that breaks off goes on where it stopped: the sender asks how far it came, or the receiver says from where on
it pulls. A peer of version 0.1 does neither, and transfers from and to it begin anew.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Container, Coroutine, Generator
from contextlib import closing
from typing import Any

import grpc

from hatdfed.deploy import history
from hatdfed.deploy.edge.incoming import MOVED, Incoming
from hatdfed.deploy.edge.outgoing import Outgoing
from hatdfed.deploy.edge.retries import Retries
from hatdfed.deploy.edge.round_mailbox import EARLY, RoundMailbox
from hatdfed.deploy.edge.transfer_tally import ReceivedFrames, SentFrames
from hatdfed.deploy.failpoints import failpoint
from hatdfed.deploy.identity.names import EDGE_ROLE, NodeId
from hatdfed.deploy.protocol import hatdfed_pb2 as pb
from hatdfed.deploy.protocol.hatdfed_pb2_grpc import PeerServicer, PeerStub
from hatdfed.deploy.relay.relay_client import RelayClient
from hatdfed.deploy.transport.callers import DENIED, CallerCheck
from hatdfed.deploy.transport.endpoints import Caller, Endpoints
from hatdfed.deploy.transport.frames import (
    SLOW,
    IncomingMessage,
    PackedMessage,
    check_header,
    collect_chunks,
    describe_message,
    read_header,
)
from hatdfed.errors import HatdfedError, IdentityError, WireError
from hatdfed.server.exchange import Received, accept
from hatdfed.server.message import Buffer, compute_overhead

_log = logging.getLogger("hatdfed.deploy.edge")
_MAX_COPIES = 2  # of the current model that late joiners may take at a time
_ASK_SECONDS = 10.0
_BROKEN_OFF = ("stalled", "cut-short", MOVED)  # after which a transfer goes on
_CURRENT_MODEL = -1  # in place of a round, when a late joiner asks for the current model
_RETIRE_SECONDS = 600.0  # that calls may still take on a retired channel

OwnModel = Callable[[], list[Buffer]]


class PeerService(PeerServicer):
    """The calls that other edges may make to this one."""

    def __init__(self, callers: CallerCheck, mailbox: RoundMailbox, idle_seconds: float, own_model: OwnModel) -> None:
        self._callers = callers
        self._mailbox = mailbox
        self._idle_seconds = idle_seconds
        self._own_model = own_model
        self._copying: set[str] = set()  # who is being sent the current model
        self._pushes: dict[str, asyncio.Task[None]] = {}  # in progress, one for each sender
        self._checking = asyncio.Lock()  # models are checked one by one: checking takes memory of its own

    async def Push(self, stream: AsyncIterator[pb.Frame], context: Any) -> pb.Received:
        """Receive a model, or answer with the reason of refusal."""
        name, frames, delivered = "", ReceivedFrames(self._mailbox.transfers, stream), False
        try:
            caller = self._callers.identify(context, EDGE_ROLE)
            name = caller.node.name
            checked = self._callers.checked(frames, caller)
            header = await read_header(checked, self._idle_seconds)
            check_header(header, _max_message_bytes(self._mailbox))  # before it waits for anything
            await self._replace_push(name, lambda: self._push(header, name, checked))
            delivered = True
        except (WireError, IdentityError) as error:
            self._mailbox.count_refusal(error.reason, name)
            _log.warning("refused a model of %s: %s", name or "a stranger", error, extra={"node": name})
            return pb.Received(accepted=False, reason=error.reason)
        finally:
            frames.count_end(delivered=delivered)
        return pb.Received(accepted=True)

    async def Pull(self, request: pb.Wanted, context: Any) -> None:
        """Send the own model, of a round or the current one."""
        mailbox, offset, name = self._mailbox, 0, ""
        try:
            caller = self._callers.identify(context, EDGE_ROLE)
            name = caller.node.name
            if request.round == _CURRENT_MODEL:
                await self._send_copy(request, caller, context)
                return
            outgoing = await self._find_outgoing(request, name)
            offset = outgoing.find_offset(request)
            await self._write_frames(outgoing, offset, caller, context)
        except (WireError, IdentityError) as error:
            mailbox.count_refusal(error.reason, name)
            _log.warning("refused to give a model to %s: %s", name or "a stranger", error, extra={"node": name})
            may_retry = error.reason == EARLY
            code = grpc.StatusCode.ABORTED if may_retry else grpc.StatusCode.FAILED_PRECONDITION
            await context.abort(code, str(error))
        # What was written need not arrive. A peer of version 0.1 never confirms that it did.
        is_confirmed = offset == outgoing.packed.size or not request.confirms
        if is_confirmed:
            await mailbox.mark_delivered(request.round, outgoing.sent.receiver)

    async def HowFar(self, request: pb.Parcel, context: Any) -> pb.Progress:
        """Tell a sender how much of its message is here."""
        mailbox, name = self._mailbox, ""
        try:
            name = self._callers.identify(context, EDGE_ROLE).node.name
            if request.run != mailbox.run or mailbox.order is None or request.round != mailbox.order.round:
                return pb.Progress()
            sender = mailbox.find_sender(name)
        except (WireError, IdentityError) as error:
            mailbox.count_refusal(error.reason, name)
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        if sender in mailbox.received:
            return pb.Progress(offset=request.size)
        await mailbox.incoming.end_stream(sender)
        known = mailbox.incoming.find(sender)
        return pb.Progress(offset=known.filled if known is not None and known.is_same_as(request) else 0)

    async def Probe(self, request: pb.Nothing, context: Any) -> pb.Nothing:
        """Answer, so that the caller knows that it can dial this edge."""
        try:
            self._callers.identify(context, EDGE_ROLE)
        except IdentityError as error:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, str(error))
        return pb.Nothing()

    async def _replace_push(self, name: str, push: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a push; it ends the one before of the same sender, whose connection may be dead."""
        while (before := self._pushes.get(name)) is not None and not before.done():
            before.cancel()
            await asyncio.wait({before})
        task = self._pushes[name] = asyncio.ensure_future(push())
        try:
            await asyncio.wait({task})
        finally:
            task.cancel()
            if self._pushes.get(name) is task:
                del self._pushes[name]
        if task.cancelled():
            raise WireError("replaced", "A newer transfer of the same model has begun.")
        task.result()

    async def _push(self, header: pb.Parcel, name: str, stream: AsyncIterator[pb.Frame]) -> None:
        mailbox, t = self._mailbox, header.round
        if header.run != mailbox.run:
            raise WireError("foreign", f"{name} sent a model of another run.")
        await mailbox.wait_for_round(t, time.monotonic() + self._idle_seconds)
        sender = mailbox.find_sender(name)
        if sender in mailbox.received:
            raise WireError("duplicate", f"The model of {name} is already here.")
        if await mailbox.incoming.wait_for_check(sender, header):
            return
        await mailbox.wait_for_room(t, sender, mailbox.until)
        message = await self._receive(header, sender, name, stream)
        failpoint("model-received")
        # If the connection breaks from now on, the next one need not bring the message again.
        await mailbox.incoming.check(sender, message, lambda: self._check(t, sender, message))

    async def _check(self, t: int, sender: int, message: IncomingMessage) -> None:
        mailbox = self._mailbox
        async with self._checking:
            if not mailbox.is_open(t):
                raise WireError("late", f"Round {t} is over here.")
            received = await check_message(mailbox, message.data, t, sender)
        await mailbox.deliver(t, sender, received, message.data)

    async def _receive(
        self, header: pb.Parcel, sender: int, name: str, stream: AsyncIterator[pb.Frame]
    ) -> IncomingMessage:
        mailbox, incoming = self._mailbox, self._mailbox.incoming
        message = await incoming.begin(sender, header, _max_message_bytes(mailbox))
        try:
            async with asyncio.timeout(mailbox.until - time.monotonic()):
                await incoming.run_stream(
                    sender,
                    collect_chunks(stream, message, incoming.get_rate(sender), idle_seconds=self._idle_seconds),
                )
        except TimeoutError:
            raise WireError("late", f"The model of {name} was still on its way when the round ended.") from None
        except WireError as error:
            if error.reason == SLOW:
                await mailbox.notice_slow_sender()
            raise
        return message

    async def _write_frames(self, outgoing: Outgoing, offset: int, caller: Caller, context: Any) -> None:
        """Send a message to a peer that fetches it, unless the peer reads too slowly."""
        rate, began = self._mailbox.incoming.make_rate(), time.monotonic()
        reached, t, delivered = outgoing.record.reached, outgoing.header.round, False
        frames = SentFrames(self._mailbox.transfers, outgoing.make_frames(offset), offset=offset, reached=reached)
        try:
            for frame in frames:
                self._callers.check(caller)
                await asyncio.wait_for(context.write(frame), self._idle_seconds)
                now = time.monotonic()
                rate.count(now - began, len(frame.chunk))
                began = now
                is_whole = offset + frames.size == outgoing.packed.size
                if not is_whole and t != _CURRENT_MODEL and not self._mailbox.is_open(t):
                    raise WireError("late", f"Round {t} has ended here.")  # what is sent after it is in no report
            if offset + frames.size < outgoing.packed.size:
                raise outgoing.make_spent_error()
            delivered = True
        except TimeoutError:
            raise WireError("stalled", f"A transfer did not move for {self._idle_seconds:g} seconds.") from None
        finally:
            frames.count_end(delivered=delivered)

    async def _find_outgoing(self, request: pb.Wanted, name: str) -> Outgoing:
        mailbox = self._mailbox
        self._require_run(request, name)
        order = await mailbox.wait_for_round(request.round, time.monotonic() + self._idle_seconds)
        receiver = mailbox.find_receiver(name)
        return await mailbox.make_message(receiver, request.round, time.monotonic() + order.seconds)

    def _require_run(self, request: pb.Wanted, name: str) -> None:
        if request.run != self._mailbox.run:
            raise WireError("foreign", f"{name} wants a model of another run.")

    async def _send_copy(self, request: pb.Wanted, caller: Caller, context: Any) -> None:
        """Send the current model to a late joiner, from where an earlier transfer broke off."""
        name = caller.node.name
        self._require_run(request, name)
        if name in self._copying or len(self._copying) >= _MAX_COPIES:
            raise WireError(EARLY, f"{name} has to wait for the current model until others have theirs.")
        self._copying.add(name)
        packing = asyncio.ensure_future(asyncio.to_thread(lambda: describe_message(self._own_model())))

        def free_place(done: asyncio.Future[PackedMessage]) -> None:
            done.exception()
            self._copying.discard(name)

        try:
            packed = await asyncio.shield(packing)
            outgoing = Outgoing(packed, packed.make_header(self._mailbox.run, _CURRENT_MODEL, self._mailbox.index))
            await self._write_frames(outgoing, outgoing.find_offset(request), caller, context)
        finally:
            packing.add_done_callback(free_place)  # not before: a caller that leaves does not end the thread


async def check_message(mailbox: RoundMailbox, data: Buffer, t: int, sender: int) -> Received:
    """Decode and check a message off the event loop; raises `WireError` if it is refused."""
    codec, limits = mailbox.program.codec, mailbox.limits
    digest = history.received_digest(data) if history.is_kept() else ""
    try:
        received = await asyncio.to_thread(
            accept, data, mailbox.message_context, t=t, sender=sender, codec=codec, limits=limits
        )
    except (TypeError, ValueError, KeyError, RuntimeError) as error:  # malformed in some other way
        raise WireError("not-a-message", f"A message cannot be read ({type(error).__name__}).") from None
    history.note("accept", mailbox.index, round=t, sender=sender, digest=digest)
    return received


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
            received = await check_message(mailbox, message.data, t, sender.index)
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
        return (await self._fetch(incoming, peer, _CURRENT_MODEL, time.monotonic() + seconds)).data

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
            message = await incoming.begin(sender.index, header, _max_message_bytes(self._mailbox))
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


def _max_message_bytes(mailbox: RoundMailbox) -> int:
    """Return the length of the longest message of this run."""
    program = mailbox.program
    return 4 * program.learner.num_params + compute_overhead(num_labels=program.num_labels)


def _describe(error: grpc.aio.AioRpcError) -> str:
    return f"{error.code().name}, {error.details()}"
