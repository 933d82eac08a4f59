"""A model as a stream of frames: first a header, then its bytes in chunks.

The receiver checks everything: a size above the agreed limit is refused before any memory is allocated for it, and a
transfer that makes no progress is given up after `idle_seconds`. One that makes progress may take as long as it needs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence

from hatdfed.deploy.protocol import hatdfed_pb2 as pb
from hatdfed.errors import WireError
from hatdfed.server.message import Buffer

CHUNK_BYTES = 256 * 1024  # larger chunks are no faster
MAX_SENDS = 2  # of one model to one receiver in a round, counted in bytes; a budget of joules relies on it
_MAX_CHUNK_BYTES = 1024 * 1024  # that we accept


def split_into_frames(header: pb.Parcel, parts: Sequence[Buffer]) -> Iterator[pb.Frame]:
    """Yield the header, then the bytes in chunks; each chunk is copied only when it is asked for."""
    yield pb.Frame(parcel=header)
    for part in parts:
        view = memoryview(part)
        for start in range(0, len(view), CHUNK_BYTES):
            yield pb.Frame(chunk=bytes(view[start : start + CHUNK_BYTES]))


async def read_header(stream: AsyncIterator[pb.Frame], idle_seconds: float) -> pb.Parcel:
    """Read the first frame, which says what the transfer is."""
    try:
        frame = await asyncio.wait_for(anext(stream, None), idle_seconds)
    except TimeoutError:
        raise _make_stalled_error(idle_seconds) from None
    if frame is None or frame.WhichOneof("what") != "parcel":
        raise WireError("not-a-message", "A transfer began without saying what it is.")
    return frame.parcel


async def collect_chunks(stream: AsyncIterator[pb.Frame], size: int, *, limit: int, idle_seconds: float) -> bytearray:
    """Read all bytes of a transfer whose header announced `size` of them."""
    if not 0 < size <= limit:
        raise WireError("too-long", f"A transfer announced {size} bytes; between 1 and {limit} were agreed upon.")
    data, filled = bytearray(size), 0
    clock = asyncio.get_running_loop().time
    try:
        # One timer for all chunks: a timer for each would cost as much as the chunk itself.
        async with asyncio.timeout(idle_seconds) as deadline:
            while filled < size:
                frame = await anext(stream, None)
                if frame is None:
                    raise WireError("cut-short", f"A transfer ended after {filled} of {size} bytes.")
                chunk = frame.chunk
                if not chunk or len(chunk) > _MAX_CHUNK_BYTES or filled + len(chunk) > size:
                    raise WireError("too-long", "A transfer sent a chunk that is empty, too long or not announced.")
                data[filled : filled + len(chunk)] = chunk
                filled += len(chunk)
                deadline.reschedule(clock() + idle_seconds)
    except TimeoutError:
        raise _make_stalled_error(idle_seconds) from None
    return data


def _make_stalled_error(idle_seconds: float) -> WireError:
    return WireError("stalled", f"A transfer did not move for {idle_seconds:g} seconds.")
