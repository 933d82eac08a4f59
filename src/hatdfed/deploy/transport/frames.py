"""A model as a stream of frames: first a header, then its bytes in chunks.

The header lists a digest for every part of the message, so the receiver verifies parts as they come, keeps them if the
transfer breaks off, and takes the rest from another one. It checks everything: a size above the agreed limit is refused
before any memory is allocated for it, and a transfer that stops or is slower than agreed is given up.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hatdfed.deploy.protocol import hatdfed_pb2 as pb
from hatdfed.errors import WireError
from hatdfed.server.message import Buffer

CHUNK_BYTES = 256 * 1024  # larger chunks are no faster
PART_BYTES = 1024 * 1024  # that have a digest of their own
MAX_SENDS = 2  # of one model to one receiver in a round, counted in bytes; a budget of joules relies on it
SLOW = "slow"  # the reason of refusal of a transfer below the least rate
_MAX_CHUNK_BYTES = 1024 * 1024  # that we accept
_MIN_PART_BYTES = 16 * 1024  # that we accept, so that a header is never long compared with its message
_DIGEST_BYTES = hashlib.sha256().digest_size


class PackedMessage(NamedTuple):
    """A message in the buffers that it was packed into, with what its header says about them."""

    parts: Sequence[Buffer]
    size: int  # bytes
    part_digests: bytes

    def make_header(self, run: str, t: int, sender: int, *, offset: int = 0) -> pb.Parcel:
        """Make the header of a transfer that begins at `offset`."""
        return pb.Parcel(
            run=run,
            round=t,
            sender=sender,
            size=self.size,
            digest=hashlib.sha256(self.part_digests).digest(),
            offset=offset,
            part_bytes=PART_BYTES,
            part_digests=self.part_digests,
        )


def describe_message(parts: Sequence[Buffer]) -> PackedMessage:
    """Compute size and digests of a message."""
    digests, digest, free = b"", hashlib.sha256(), PART_BYTES
    for part in parts:
        view = memoryview(part)
        while len(view):
            digest.update(view[:free])
            taken = min(free, len(view))
            view, free = view[taken:], free - taken
            if not free:
                digests, digest, free = digests + digest.digest(), hashlib.sha256(), PART_BYTES
    if free < PART_BYTES:
        digests += digest.digest()
    return PackedMessage(parts, sum(map(len, parts)), digests)


def split_into_frames(header: pb.Parcel, parts: Sequence[Buffer]) -> Iterator[pb.Frame]:
    """Yield the header, then the bytes from its offset on in chunks; each chunk is copied only when it is asked for."""
    yield pb.Frame(parcel=header)
    skip = header.offset
    for part in parts:
        view = memoryview(part)
        for start in range(min(skip, len(view)), len(view), CHUNK_BYTES):
            yield pb.Frame(chunk=bytes(view[start : start + CHUNK_BYTES]))
        skip = max(0, skip - len(view))


@dataclass
class LeastRate:
    """How far the transfers of one peer are behind the least rate, in seconds; a burst makes up for a pause."""

    bytes_per_second: float
    seconds: float  # that they may be behind
    behind: float = 0.0

    def count(self, seconds: float, num_bytes: int) -> None:
        """Count bytes that took so long; raises `WireError` if that is too slow."""
        gained = num_bytes / self.bytes_per_second if self.bytes_per_second > 0 else seconds
        self.behind = max(0.0, self.behind + seconds - gained)
        if self.behind > self.seconds:
            raise WireError(SLOW, f"A transfer is slower than {self.bytes_per_second:g} bytes a second.")

    def count_stall(self) -> None:
        """Count a transfer that stopped; raises `WireError` if nothing was made up since the last time."""
        if self.behind >= self.seconds:
            raise WireError(SLOW, "A transfer stopped again before it had moved.")
        self.behind = self.seconds


class IncomingMessage:
    """A message as far as it is here. Every part is checked as soon as it is complete."""

    def __init__(self, header: pb.Parcel, limit: int) -> None:
        check_header(header, limit)
        self.data = bytearray(header.size)
        self.filled = 0
        self._digest = header.digest
        self._part_bytes = header.part_bytes
        self._part_digests = header.part_digests

    @property
    def is_complete(self) -> bool:
        """Whether all bytes are here."""
        return self.filled == len(self.data)

    @property
    def digest(self) -> bytes:
        """By which a sender recognises it; empty if the sender cannot continue a transfer."""
        return self._digest

    def is_same_as(self, header: pb.Parcel) -> bool:
        """Return whether a header announces this message."""
        return bool(self._digest) and (header.digest, header.size) == (self._digest, len(self.data))

    def add(self, chunk: bytes) -> None:
        """Add the next bytes; of a part that is damaged nothing is kept."""
        if not chunk or len(chunk) > _MAX_CHUNK_BYTES or self.filled + len(chunk) > len(self.data):
            raise WireError("too-long", "A transfer sent a chunk that is empty, too long or not announced.")
        before = self.filled
        self.data[before : before + len(chunk)] = chunk
        self.filled += len(chunk)
        if self._digest:
            self._check_parts(before)

    def _check_parts(self, before: int) -> None:
        size = self._part_bytes
        last = len(self._part_digests) // _DIGEST_BYTES if self.is_complete else self.filled // size
        for number in range(before // size, last):
            part = memoryview(self.data)[number * size : (number + 1) * size]
            start = _DIGEST_BYTES * number  # slices are short: a hostile header may announce very many parts
            if hashlib.sha256(part).digest() != self._part_digests[start : start + _DIGEST_BYTES]:
                self.filled = number * size
                raise WireError("damaged", f"Part {number} of a message was damaged in transit.")


def check_header(header: pb.Parcel, limit: int) -> None:
    """Check size and digests that a transfer announces; raises `WireError`."""
    if not 0 < header.size <= limit:
        raise WireError(
            "too-long", f"A transfer announced {header.size} bytes; between 1 and {limit} were agreed upon."
        )
    if not header.digest and not header.part_digests:
        return  # a sender of version 0.1: the digest of the whole message is checked at its end
    is_fit = header.part_bytes >= min(_MIN_PART_BYTES, header.size)
    count = -(-header.size // header.part_bytes) if is_fit else -1
    is_whole = len(header.part_digests) == count * _DIGEST_BYTES
    if not is_whole or hashlib.sha256(header.part_digests).digest() != header.digest:
        raise WireError("bad-header", "A transfer announced digests that do not fit its size.")


async def read_header(stream: AsyncIterator[pb.Frame], idle_seconds: float) -> pb.Parcel:
    """Read the first frame, which says what the transfer is."""
    try:
        frame = await asyncio.wait_for(anext(stream, None), idle_seconds)
    except TimeoutError:
        raise _make_stalled_error(idle_seconds) from None
    if frame is None or frame.WhichOneof("what") != "parcel":
        raise WireError("not-a-message", "A transfer began without saying what it is.")
    return frame.parcel


async def collect_chunks(
    stream: AsyncIterator[pb.Frame], incoming: IncomingMessage, rate: LeastRate, *, idle_seconds: float
) -> None:
    """Read the bytes that a message still lacks; what came before an error stays in it."""
    clock = asyncio.get_running_loop().time
    counted = clock()
    try:
        # One timer for all chunks: a timer for each would cost as much as the chunk itself.
        async with asyncio.timeout(idle_seconds) as deadline:
            while not incoming.is_complete:
                frame = await anext(stream, None)
                if frame is None:
                    raise WireError(
                        "cut-short", f"A transfer ended after {incoming.filled} of {len(incoming.data)} bytes."
                    )
                incoming.add(frame.chunk)
                now = clock()
                rate.count(now - counted, len(frame.chunk))
                counted = now
                deadline.reschedule(now + idle_seconds)
    except TimeoutError:
        rate.count_stall()
        raise _make_stalled_error(idle_seconds) from None


def _make_stalled_error(idle_seconds: float) -> WireError:
    return WireError("stalled", f"A transfer did not move for {idle_seconds:g} seconds.")
