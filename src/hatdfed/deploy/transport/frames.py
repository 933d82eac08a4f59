"""A model as a stream of frames: first what it is, then its bytes in chunks.

Nothing is believed before it is checked: a size above what was agreed is refused before any memory is taken for it, a
stream that stops moving is given up after `idle_seconds`, and one that moves may take as long as it needs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence

from hatdfed.deploy.protocol import hatdfed_pb2 as pb
from hatdfed.errors import WireError
from hatdfed.server.message import Buffer

CHUNK_BYTES = 256 * 1024  # larger chunks are no faster
MOST_SENDS = 2  # of one model to one receiver in a round, counted in bytes: what a budget of joules reckons with
_LARGEST_CHUNK = 1024 * 1024  # that we take from others


def frames(parcel: pb.Parcel, parts: Sequence[Buffer]) -> Iterator[pb.Frame]:
    """The parcel, then its bytes, which are copied a chunk at a time and no sooner."""
    yield pb.Frame(parcel=parcel)
    for part in parts:
        view = memoryview(part)
        for start in range(0, len(view), CHUNK_BYTES):
            yield pb.Frame(chunk=bytes(view[start : start + CHUNK_BYTES]))


async def first_frame(stream: AsyncIterator[pb.Frame], idle_seconds: float) -> pb.Parcel:
    """What is coming."""
    try:
        frame = await asyncio.wait_for(anext(stream, None), idle_seconds)
    except TimeoutError:
        raise _stalled(idle_seconds) from None
    if frame is None or frame.WhichOneof("what") != "parcel":
        raise WireError("not-a-message", "A transfer began without saying what it is.")
    return frame.parcel


async def collect(stream: AsyncIterator[pb.Frame], size: int, *, limit: int, idle_seconds: float) -> bytearray:
    """All bytes of a transfer whose first frame announced `size` of them."""
    if not 0 < size <= limit:
        raise WireError("too-long", f"A transfer announced {size} bytes; between 1 and {limit} were agreed upon.")
    data, filled = bytearray(size), 0
    clock = asyncio.get_running_loop().time
    try:
        async with asyncio.timeout(
            idle_seconds
        ) as patience:  # one for all chunks: a timer for each costs as much as it
            while filled < size:
                frame = await anext(stream, None)
                if frame is None:
                    raise WireError("cut-short", f"A transfer ended after {filled} of {size} bytes.")
                chunk = frame.chunk
                if not chunk or len(chunk) > _LARGEST_CHUNK or filled + len(chunk) > size:
                    raise WireError("too-long", "A transfer sent a chunk that is empty, too long or not announced.")
                data[filled : filled + len(chunk)] = chunk
                filled += len(chunk)
                patience.reschedule(clock() + idle_seconds)
    except TimeoutError:
        raise _stalled(idle_seconds) from None
    return data


def _stalled(idle_seconds: float) -> WireError:
    return WireError("stalled", f"A transfer did not move for {idle_seconds:g} seconds.")
