"""Transfers of models: messages on their way to an edge and from it, and the bytes that they take.

What has arrived of a message stays here when its stream breaks off, and the sender's next stream goes on from there.
What was sent is counted by receiver, repetitions included; a message is sent `MAX_SENDS` times at most. A sender that
is too slow is not listened to again in the round.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from hatdfed.deploy import history
from hatdfed.deploy.failpoints import failpoint
from hatdfed.deploy.protocol import hatdfed_pb2 as pb
from hatdfed.deploy.transport.frames import (
    MAX_SENDS,
    SLOW,
    IncomingMessage,
    LeastRate,
    PackedMessage,
    split_into_frames,
)
from hatdfed.errors import WireError

MOVED = "moved"  # the reason of refusal of a transfer that does not begin where it should
CURRENT_MODEL = -1  # in place of a round, when a late joiner asks for the current model
Direction = Literal["in", "out"]
_MAX_FAILED_CHECKS = 16  # of one sender in a round: each takes the time of whole models


@dataclass
class SendRecord:
    """What one receiver was sent in a round, over all transfers."""

    sent: pb.Sent
    reached: int = 0  # bytes of the message that were sent at least once


@dataclass(frozen=True)
class Outgoing:
    """A message for one receiver."""

    packed: PackedMessage
    header: pb.Parcel
    share: float = 0.0  # of a float32 model that the whole message takes
    record: SendRecord = field(default_factory=lambda: SendRecord(pb.Sent()))

    @property
    def sent(self) -> pb.Sent:
        """What is reported about this receiver."""
        return self.record.sent

    def find_offset(self, wanted: pb.Wanted) -> int:
        """Return from where on a receiver wants this message: 0 if it has begun with another one."""
        is_same = wanted.digest == self.header.digest and 0 <= wanted.offset <= self.packed.size
        return wanted.offset if is_same else 0

    def make_frames(self, offset: int) -> Generator[pb.Frame, None, None]:
        """Yield the frames from an offset on; each counts as sent when it is handed over."""
        if not self._may_send(self.packed.size - offset):
            raise self.make_spent_error()
        return self._make_frames(offset)

    def make_spent_error(self) -> WireError:
        """Make the error of a receiver that was sent all that it may be sent."""
        receiver, t = self.sent.receiver, self.header.round
        return WireError("spent", f"The model of round {t} was sent to server {receiver} too often.")

    def _may_send(self, num_bytes: int) -> bool:
        share = self.sent.share + self.share * num_bytes / self.packed.size
        return num_bytes == 0 or share <= MAX_SENDS * self.share * (1 + 1e-9)

    def _make_frames(self, offset: int) -> Generator[pb.Frame, None, None]:
        header = pb.Parcel()
        header.CopyFrom(self.header)
        header.offset, place = offset, offset
        about = {"round": header.round, "receiver": self.sent.receiver}
        if history.is_kept():
            digest = history.sent_digest(self.packed.parts[0])
            history.note("send", header.sender, **about, digest=digest)
        try:
            for frame in split_into_frames(header, self.packed.parts):
                # Several transfers at a time may have begun, which together are too much. Their end shows that.
                if not self._may_send(len(frame.chunk)):
                    return
                # It counts when it is handed over: a report may be due before it has arrived.
                self._count(place, len(frame.chunk))
                place += len(frame.chunk)
                if 2 * place >= self.packed.size:
                    failpoint("half-sent")
                yield frame
        finally:
            own = self.share * (place - offset) / self.packed.size
            history.note("sent", header.sender, **about, share=own)

    def _count(self, place: int, num_bytes: int) -> None:
        a_byte, record = self.share / self.packed.size, self.record
        self.sent.share += a_byte * num_bytes
        self.sent.again += a_byte * max(0, min(record.reached, place + num_bytes) - place)
        record.reached = max(record.reached, place + num_bytes)


class Incoming:
    """The messages that are not complete yet, by sender."""

    def __init__(self, idle_seconds: float, least_bytes_per_second: float = 0.0) -> None:
        self.idle_seconds = idle_seconds
        self._least_rate = least_bytes_per_second
        self._messages: dict[int, IncomingMessage] = {}
        self._rates: dict[int, LeastRate] = {}
        self._streams: dict[int, asyncio.Task[Any]] = {}
        self._checks: dict[int, asyncio.Task[None]] = {}  # of messages that are complete
        self._failed_checks: Counter[int] = Counter()
        self.slow: set[int] = set()  # senders that are not listened to again

    def clear(self) -> None:
        """Forget everything: another round begins, or this one is over."""
        tasks = [*self._streams.values(), *self._checks.values()]
        self._messages, self._rates, self.slow = {}, {}, set()
        self._streams, self._checks, self._failed_checks = {}, {}, Counter()
        for task in tasks:
            task.cancel()

    def make_another(self) -> Incoming:
        """Make another one with the same limits, for models that belong to no round."""
        return Incoming(self.idle_seconds, self._least_rate)

    def count_bytes(self, sender: int) -> int:
        """Return how many bytes of a sender's message are here."""
        return 0 if (known := self._messages.get(sender)) is None else known.filled

    def find(self, sender: int) -> IncomingMessage | None:
        """Return what has arrived from a sender; None if nothing has."""
        return self._messages.get(sender)

    async def begin(self, sender: int, header: pb.Parcel, limit: int) -> IncomingMessage:
        """Return the message that a transfer fills: the one that broke off, or a new one if it begins anew."""
        await self.end_stream(sender)
        known = self._messages.get(sender)
        if known is not None and known.is_same_as(header) and header.offset == known.filled:
            return known
        if header.offset:
            raise WireError(MOVED, f"A transfer begins at byte {header.offset}, which is not where it broke off.")
        self._messages[sender] = IncomingMessage(header, limit)
        return self._messages[sender]

    def take(self, sender: int, message: IncomingMessage) -> None:
        """Remove a message that is complete."""
        if self._messages.get(sender) is message:
            del self._messages[sender]

    async def check(self, sender: int, message: IncomingMessage, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Check and deliver a complete message, even if its connection breaks meanwhile; one at a time of a sender."""
        if self._failed_checks[sender] >= _MAX_FAILED_CHECKS:
            self.take(sender, message)
            raise WireError("spent", "A sender has no more attempts in this round.")
        task = self._checks[sender] = asyncio.ensure_future(work())
        task.add_done_callback(lambda task: self._end_check(sender, message, task))
        await self._wait_for_check(task)

    async def wait_for_check(self, sender: int, header: pb.Parcel) -> bool:
        """Wait for a check in progress; returns whether there was one, of the message that a header announces."""
        task = self._checks.get(sender)
        if task is None:
            return False
        known = self._messages.get(sender)
        if known is None or not known.is_same_as(header):
            raise WireError("duplicate", "Another model of this sender is being checked.")
        await self._wait_for_check(task)
        return True

    async def _wait_for_check(self, task: asyncio.Task[None]) -> None:
        await asyncio.wait({task})  # which leaves the check alone if whoever waits is cancelled
        if task.cancelled():
            raise WireError("late", "A model was still being checked when the round ended.")
        task.result()

    def _end_check(self, sender: int, message: IncomingMessage, task: asyncio.Task[None]) -> None:
        self.take(sender, message)
        if self._checks.get(sender) is task:
            del self._checks[sender]
            self._failed_checks[sender] += task.cancelled() or task.exception() is not None

    def get_rate(self, sender: int) -> LeastRate:
        """Return the account of how slow a sender was in this round."""
        return self._rates.setdefault(sender, self.make_rate())

    def make_rate(self) -> LeastRate:
        """Make a new account, for one transfer."""
        return LeastRate(self._least_rate, self.idle_seconds)

    async def end_stream(self, sender: int) -> None:
        """End a sender's stream, if it has one: its next one counts. The old one may be a dead connection."""
        while (task := self._streams.get(sender)) is not None and not task.done():
            task.cancel()
            await asyncio.wait({task})

    async def run_stream(self, sender: int, work: Coroutine[Any, Any, None]) -> None:
        """Read a stream of this sender until it ends or a newer one replaces it."""
        if sender in self.slow:
            work.close()
            raise WireError(SLOW, "A sender was too slow in this round and is not listened to again.")
        task = self._streams[sender] = asyncio.ensure_future(work)
        try:
            await asyncio.wait({task})
        finally:
            task.cancel()
            is_replaced = sender in self._streams
            if self._streams.get(sender) is task:
                del self._streams[sender]
        if task.cancelled():
            if is_replaced:
                raise WireError("replaced", "A newer transfer of the same model has begun.")
            raise WireError("late", "A model was still on its way when the round ended.")
        if (error := task.exception()) is not None:
            if isinstance(error, WireError) and error.reason == SLOW:
                self.slow.add(sender)
                self._messages.pop(sender, None)
            raise error


class TransferTally:
    """All transfers since the process started."""

    def __init__(self) -> None:
        self.bytes: Counter[Direction] = Counter({"in": 0, "out": 0})
        self.failed_bytes: Counter[Direction] = Counter({"in": 0, "out": 0})
        self.resent_bytes = 0
        self.ended: Counter[tuple[Direction, str]] = Counter(
            {(direction, result): 0 for direction in ("in", "out") for result in ("delivered", "failed")}
        )

    def count_end(self, direction: Direction, size: int, *, delivered: bool) -> None:
        """Count a transfer that has ended after `size` bytes; one without any was only a question or an answer."""
        if not size:
            return
        self.ended[direction, "delivered" if delivered else "failed"] += 1
        if not delivered:
            self.failed_bytes[direction] += size


class SentFrames(Iterator[pb.Frame]):
    """Passes frames on and counts their bytes."""

    def __init__(
        self, tally: TransferTally, frames: Generator[pb.Frame, None, None], *, offset: int = 0, reached: int = 0
    ) -> None:
        """Frames of a message from `offset` on, of which `reached` bytes were sent before."""
        self.size = 0
        self._tally = tally
        self._frames = frames
        self._offset = offset
        self._reached = reached

    def __next__(self) -> pb.Frame:
        frame = next(self._frames)
        size, place = len(frame.chunk), self._offset + self.size
        self.size += size
        self._tally.bytes["out"] += size
        self._tally.resent_bytes += max(0, min(self._reached, place + size) - place)
        return frame

    def count_end(self, *, delivered: bool) -> None:
        """Count how the transfer ended, and end the frames: they are not left to the garbage collector."""
        self._frames.close()
        self._tally.count_end("out", self.size, delivered=delivered)


class ReceivedFrames(AsyncIterator[pb.Frame]):
    """Passes frames on and counts their bytes."""

    def __init__(self, tally: TransferTally, frames: AsyncIterator[pb.Frame]) -> None:
        self.size = 0
        self._tally = tally
        self._frames = frames

    async def __anext__(self) -> pb.Frame:
        frame = await anext(self._frames)
        self.size += len(frame.chunk)
        self._tally.bytes["in"] += len(frame.chunk)
        return frame

    def count_end(self, *, delivered: bool) -> None:
        """Count how the transfer ended."""
        self._tally.count_end("in", self.size, delivered=delivered)
