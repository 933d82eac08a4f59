"""What edges and a relay say to each other.

An edge keeps one control connection to the relay: mutual TLS, one JSON object per line.

    edge     {"protocol": 1, "name": NAME}                 first
             {"beat": true}                                answered by the same
             {"ask": "call", "to": NAME, "id": N}
    relay    {"id": N, "session": SESSION} or {"id": N, "error": sentence}
             {"call": SESSION, "from": NAME}               somebody calls

A session is two more connections, one from each edge. Each begins with the line `HATDFED-RELAY SESSION`; from then on
the relay passes bytes on as they are. The edges speak TLS with each other through it, so these connections have none of
their own.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from hatdfed.deploy.identity.files import IdentityFolder
from hatdfed.errors import IdentityError

PROTOCOL = 1
BEAT_SECONDS = 5.0
SILENT_SECONDS = 3 * BEAT_SECONDS  # after which the other side is taken for dead
MAX_LINE_BYTES = 1024
_MAX_UNREAD_BYTES = 64 * 1024  # hundreds of messages: an edge that leaves so many unread is not there
SESSION_START = b"HATDFED-RELAY "
_BLOCK_BYTES = 64 * 1024
_BUFFER_BYTES = 256 * 1024  # more would only be lost when a connection breaks, and delay gRPC's signs of life
_IDLE_SECONDS = 120.0  # after which a session ends: gRPC sends a sign of life every 10 seconds, even if no model moves
_FLUSH_SECONDS = 5.0  # that the rest of a session may take to be sent

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def send_line(writer: asyncio.StreamWriter, message: dict[str, Any]) -> None:
    """Send one message of a control connection; raises `TimeoutError` if the other side does not read."""
    writer.write(_make_line(message))
    async with asyncio.timeout(SILENT_SECONDS):
        await writer.drain()


def offer_line(writer: asyncio.StreamWriter, message: dict[str, Any]) -> bool:
    """Send one message without waiting; returns False, and ends the connection, if the other side does not read."""
    if writer.transport.get_write_buffer_size() > _MAX_UNREAD_BYTES:
        writer.transport.abort()
    if writer.transport.is_closing():
        return False
    writer.write(_make_line(message))
    return True


def _make_line(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"


async def receive_line(reader: asyncio.StreamReader) -> dict[str, Any] | None:
    """Receive one message of a control connection; None at its end."""
    try:
        async with asyncio.timeout(SILENT_SECONDS):
            line = await reader.readline()
        if len(line) > MAX_LINE_BYTES:  # the reader's own limit may be that of a session
            raise ValueError
        message = json.loads(line) if line else None
    except TimeoutError:
        raise IdentityError("silent", f"Nothing was heard for {SILENT_SECONDS:g} seconds.") from None
    except (ValueError, RecursionError):
        raise IdentityError("bad-line", "A line is too long, or not JSON.") from None
    if message is not None and not isinstance(message, dict):
        raise IdentityError("bad-line", "A line is no JSON object.")
    return message


def make_server_context(folder: IdentityFolder) -> ssl.SSLContext:
    """Make the TLS context of a relay, which requires certificates of the deployment."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.num_tickets = 0  # no connection is ever resumed
    context.verify_mode = ssl.CERT_REQUIRED
    return _load(context, folder)


def make_client_context(folder: IdentityFolder) -> ssl.SSLContext:
    """Make the TLS context of an edge; the name of the relay is checked against its certificate."""
    return _load(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), folder)


def _load(context: ssl.SSLContext, folder: IdentityFolder) -> ssl.SSLContext:
    identity = folder.load()  # checked first: the TLS library would not say what is wrong
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(cadata=identity.ca_pem.decode())
    context.load_cert_chain(folder.cert_file, folder.key_file)
    return context


class _Passed:
    """Bytes that a session has passed on."""

    def __init__(self, count: Callable[[int], None]) -> None:
        self._count = count
        self.size = 0

    def add(self, size: int) -> None:
        self.size += size
        self._count(size)


async def splice(one: Streams, other: Streams, count: Callable[[int], None] = lambda size: None) -> int:
    """Pass bytes on in both directions until either side ends or both are idle; counts them, and returns how many."""
    writers, passed = (one[1], other[1]), _Passed(count)
    try:
        for writer in writers:
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
        await _pass_on_both(one, other, passed)
        await asyncio.gather(*map(_flush, writers))
    finally:
        for writer in writers:
            writer.transport.abort()
    return passed.size


async def _pass_on_both(one: Streams, other: Streams, passed: _Passed) -> None:
    tasks = [
        asyncio.ensure_future(_pass_on(one[0], other[1], passed)),
        asyncio.ensure_future(_pass_on(other[0], one[1], passed)),
    ]
    try:
        await _wait_for_end(tasks, passed)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _wait_for_end(tasks: list[asyncio.Task[None]], passed: _Passed) -> None:
    """Wait until a task ends, or nothing has passed for `_IDLE_SECONDS`."""
    before = -1
    while passed.size != before:
        before = passed.size
        done, _ = await asyncio.wait(tasks, timeout=_IDLE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if done:
            return


async def _flush(writer: asyncio.StreamWriter) -> None:
    """Close a connection when what was written is sent; a side that does not read must not keep it open."""
    writer.close()
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(_FLUSH_SECONDS):
            await writer.wait_closed()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, passed: _Passed) -> None:
    with suppress(OSError):
        while data := await reader.read(_BLOCK_BYTES):
            writer.write(data)
            passed.add(len(data))
            await writer.drain()
