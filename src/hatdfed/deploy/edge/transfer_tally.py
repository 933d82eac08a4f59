"""Counts the bytes of models that an edge sends and receives, those of failed and repeated transfers included."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Generator, Iterator
from typing import Literal

from hatdfed.deploy.protocol import hatdfed_pb2 as pb

Direction = Literal["in", "out"]


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
