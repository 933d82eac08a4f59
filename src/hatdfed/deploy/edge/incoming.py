"""The models of one round that are on their way to an edge: at most one stream and one message a sender.

What has arrived of a message stays here when its stream breaks off, and the sender's next stream goes on from there.
A sender that is too slow is not listened to again in this round.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

from hatdfed.deploy.protocol import hatdfed_pb2 as pb
from hatdfed.deploy.transport.frames import SLOW, IncomingMessage, LeastRate
from hatdfed.errors import WireError

_MAX_FAILED_CHECKS = 16  # of one sender in a round: each takes the time of whole models
MOVED = "moved"  # the reason of refusal of a transfer that does not begin where it should


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
