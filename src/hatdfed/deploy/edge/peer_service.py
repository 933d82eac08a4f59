"""The calls that other edges may make to this one: to bring a model, to fetch one, to ask how far a transfer came.

Whoever can dial the other does: a sender pushes to a receiver that it can dial; otherwise the receiver pulls. A
transfer that breaks off goes on where it stopped: the sender asks how far it came, or the receiver says from where on
it pulls. A peer of version 0.1 does neither, and transfers from and to it begin anew.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import grpc

from hatdfed.deploy.edge.round_mailbox import EARLY, RoundMailbox
from hatdfed.deploy.edge.transfers import CURRENT_MODEL, Outgoing, ReceivedFrames, SentFrames
from hatdfed.deploy.failpoints import failpoint
from hatdfed.deploy.identity.names import EDGE_ROLE
from hatdfed.deploy.protocol import hatdfed_pb2 as pb
from hatdfed.deploy.protocol.hatdfed_pb2_grpc import PeerServicer
from hatdfed.deploy.transport.callers import CallerCheck
from hatdfed.deploy.transport.endpoints import Caller
from hatdfed.deploy.transport.frames import (
    SLOW,
    IncomingMessage,
    PackedMessage,
    check_header,
    collect_chunks,
    describe_message,
    read_header,
)
from hatdfed.errors import IdentityError, WireError
from hatdfed.server.message import Buffer

_log = logging.getLogger("hatdfed.deploy.edge")
_MAX_COPIES = 2  # of the current model that late joiners may take at a time

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
            check_header(header, self._mailbox.max_message_bytes)  # before it waits for anything
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
            if request.round == CURRENT_MODEL:
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
            received = await mailbox.check(message.data, t, sender)
        await mailbox.deliver(t, sender, received, message.data)

    async def _receive(
        self, header: pb.Parcel, sender: int, name: str, stream: AsyncIterator[pb.Frame]
    ) -> IncomingMessage:
        mailbox, incoming = self._mailbox, self._mailbox.incoming
        message = await incoming.begin(sender, header, mailbox.max_message_bytes)
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
                if not is_whole and t != CURRENT_MODEL and not self._mailbox.is_open(t):
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
            outgoing = Outgoing(packed, packed.make_header(self._mailbox.run, CURRENT_MODEL, self._mailbox.index))
            await self._write_frames(outgoing, outgoing.find_offset(request), caller, context)
        finally:
            packing.add_done_callback(free_place)  # not before: a caller that leaves does not end the thread
