"""A model as a stream of frames: first what it is, then its bytes in chunks.

Nothing is believed before it is checked: a size above what was agreed is refused before any memory is taken for it, a
stream that stops moving is given up after `idle_seconds`, and one that moves may take as long as it needs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

from hatdfed.errors import WireError
from hatdfed.net.protocol import hatdfed_pb2 as pb

CHUNK_BYTES = 256 * 1024  # larger chunks are no faster
_LARGEST_CHUNK = 1024 * 1024  # that we take from others


def frames(parcel: pb.Parcel, data: bytes) -> Iterator[pb.Frame]:
    """The parcel, then its bytes."""
    yield pb.Frame(parcel=parcel)
    view = memoryview(data)
    for start in range(0, len(view), CHUNK_BYTES):
        yield pb.Frame(chunk=bytes(view[start : start + CHUNK_BYTES]))


async def first_frame(stream: AsyncIterator[pb.Frame], idle_seconds: float) -> pb.Parcel:
    """What is coming."""
    frame = await _next(stream, idle_seconds)
    if frame is None or frame.WhichOneof("what") != "parcel":
        raise WireError("not-a-message", "A transfer began without saying what it is.")
    return frame.parcel


async def collect(stream: AsyncIterator[pb.Frame], size: int, *, limit: int, idle_seconds: float) -> bytes:
    """All bytes of a transfer whose first frame announced `size` of them."""
    if not 0 < size <= limit:
        raise WireError("too-long", f"A transfer announced {size} bytes; between 1 and {limit} were agreed upon.")
    data, filled = bytearray(size), 0
    while filled < size:
        frame = await _next(stream, idle_seconds)
        if frame is None:
            raise WireError("cut-short", f"A transfer ended after {filled} of {size} bytes.")
        chunk = frame.chunk
        if not chunk or len(chunk) > _LARGEST_CHUNK or filled + len(chunk) > size:
            raise WireError("too-long", "A transfer sent a chunk that is empty, too long or not announced.")
        data[filled : filled + len(chunk)] = chunk
        filled += len(chunk)
    return bytes(data)


async def _next(stream: AsyncIterator[pb.Frame], idle_seconds: float) -> pb.Frame | None:
    try:
        return await asyncio.wait_for(anext(stream), idle_seconds)
    except StopAsyncIteration:
        return None
    except TimeoutError:
        raise WireError("stalled", f"A transfer did not move for {idle_seconds:g} seconds.") from None
