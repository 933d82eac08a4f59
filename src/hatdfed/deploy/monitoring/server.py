"""Serves metrics to Prometheus, collected at every scrape.

Anybody who reaches the port can connect, so the number of connections and their time are bounded.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.registry import Collector

from hatdfed.deploy.transport.connection_limit import ConnectionLimit
from hatdfed.errors import ConfigError

_MAX_CONNECTIONS = 16
_SECONDS = 5.0  # for request and response
_MAX_BYTES = 16 * 1024  # of a request
_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"  # the format that every version of Prometheus reads


@asynccontextmanager
async def serve_metrics(host: str, port: int, *collectors: Collector) -> AsyncIterator[int]:
    """Serve http://host:port/metrics while the context is open; yields the port."""
    registry = CollectorRegistry()
    for collector in collectors:
        registry.register(collector)
    connections = ConnectionLimit(_MAX_CONNECTIONS, partial(_serve, registry))
    with _listen(host, port) as listener:
        accepting = asyncio.ensure_future(connections.accept(listener))
        try:
            yield int(listener.getsockname()[1])
        finally:
            accepting.cancel()
            await asyncio.gather(accepting, return_exceptions=True)
            await connections.close()


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.create_server(address[:2], family=family)
    except OSError as error:
        raise ConfigError(
            f"Metrics cannot be served at {host}:{port} ({error.strerror}). Choose another port."
        ) from None
    listener.setblocking(False)
    return listener


async def _serve(registry: CollectorRegistry, connection: socket.socket, _: str) -> None:
    """Answer one request, and close the connection if that takes too long."""
    with suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        async with asyncio.timeout(_SECONDS):
            reader, writer = await asyncio.open_connection(sock=connection, limit=_MAX_BYTES)
            try:
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(_answer(registry, head.decode("latin-1")))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
            finally:
                writer.transport.abort()


def _answer(registry: CollectorRegistry, head: str) -> bytes:
    method, path = (*head.partition("\r\n")[0].split(" "), "", "")[:2]
    status, body = "200 OK", b""
    if method not in ("GET", "HEAD"):
        status = "405 Method Not Allowed"
    elif path.partition("?")[0] not in ("/", "/metrics"):
        status = "404 Not Found"
    else:
        body = generate_latest(registry)
    headers = [f"Content-Type: {_CONTENT_TYPE}", f"Content-Length: {len(body)}", "Connection: close"]
    response = "\r\n".join([f"HTTP/1.1 {status}", *headers, "", ""])
    return response.encode() + (b"" if method == "HEAD" else body)
