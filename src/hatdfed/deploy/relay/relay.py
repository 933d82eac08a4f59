"""The relay: pairs connections of edges that cannot dial each other, and passes on bytes that it cannot read.

Only holders of a certificate of the deployment can call through it, and only edges that wait at it can be called. It
keeps nothing, and knows of a model only its length and who sent it to whom.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Container
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from hatdfed.deploy.identity.files import IdentityFolder
from hatdfed.deploy.identity.names import EDGE_ROLE, NodeId, node_from_uri
from hatdfed.deploy.relay.wire import (
    PROTOCOL,
    SESSION_START,
    Streams,
    make_server_context,
    offer_line,
    receive_line,
    send_line,
    splice,
)
from hatdfed.deploy.transport.connection_limit import ConnectionLimit
from hatdfed.errors import ConfigError, IdentityError

_log = logging.getLogger("hatdfed.deploy.relay")
_MAX_CONNECTIONS = 4096
_RESERVED = 512  # of these, connections that sessions cannot take: edges must be able to come at any time
_MAX_SESSIONS = 128  # that one edge may have asked for: one for each peer, and some that are replaced
_MAX_SESSIONS_TO_ONE = 16  # of these, to the same edge, which answers a limited number of calls at a time
_FIRST_SECONDS = 5.0  # that a new connection may take to say what it is
_PAIRING_SECONDS = 10.0  # that one edge waits for the other
_TOO_MANY = "too-many"  # connections that had not yet said what they are
_NOT_HERE = "it does not wait at the relay"
_LEFT_EARLY = (IdentityError, OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError)


@dataclass
class _Waiting:
    """An edge that can be called."""

    name: str
    writer: asyncio.StreamWriter
    expires: float | None  # of its certificate, in seconds since 1970; None: it has none


@dataclass
class _Session:
    """A call: who makes it to whom, and the connection that came first."""

    caller: str
    callee: str
    first: Streams | None = None
    is_paired: asyncio.Event = field(default_factory=asyncio.Event)
    is_over: asyncio.Event = field(default_factory=asyncio.Event)


class Relay:
    """One relay process; use it as `async with relay.serve("0.0.0.0", 7446) as port`."""

    def __init__(self, identity: IdentityFolder | None, denied: Container[str] = ()) -> None:
        """Names that are `denied`, as of the moment, can neither wait nor call."""
        self._identity = identity
        self._denied = denied
        self._waiting: dict[str, _Waiting] = {}
        self._sessions: dict[str, _Session] = {}
        self._limit = ConnectionLimit(_MAX_CONNECTIONS, self._serve, lambda _: self._count_refusal(_TOO_MANY))
        self._context: tuple[tuple[int, int], ssl.SSLContext] | None = None
        self.passed_bytes = 0
        self.refused: Counter[str] = Counter()  # connections, by reason
        self.refused_calls = 0

    @asynccontextmanager
    async def serve(self, host: str, port: int) -> AsyncIterator[int]:
        """Serve until the context ends; yields the port."""
        if self._identity is not None:
            self._make_context()  # an identity that is no good is an error at the start
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            listener = socket.create_server((host, port), family=family)
        except OSError as error:
            raise ConfigError(f"Cannot listen at {host}:{port} ({error.strerror}). Choose another port.") from None
        listener.setblocking(False)
        accepting = asyncio.ensure_future(self._limit.accept(listener))
        try:
            yield int(listener.getsockname()[1])
        finally:
            accepting.cancel()
            await asyncio.gather(accepting, return_exceptions=True)
            await self._limit.close()
            listener.close()

    @property
    def waiting(self) -> list[str]:
        """The edges that can be called."""
        return sorted(self._waiting)

    @property
    def num_sessions(self) -> int:
        """How many pairs of edges are connected, or about to be."""
        return len(self._sessions)

    async def _serve(self, connection: socket.socket, address: str) -> None:
        try:
            async with asyncio.timeout(_FIRST_SECONDS):
                first = await _peek(connection)
                is_session = first == SESSION_START[:1]
                streams = await self._open(connection, is_secure=not is_session and self._identity is not None)
            if is_session:
                await self._serve_session(streams)
            else:
                await self._serve_edge(streams)
        except _LEFT_EARLY as error:
            _log.debug("A caller from %s left early (%s).", address, type(error).__name__)
            self._count_refusal(_find_reason(error))
            connection.close()

    def _count_refusal(self, reason: str) -> None:
        if reason:
            self.refused[reason] += 1

    def _count_bytes(self, size: int) -> None:
        self.passed_bytes += size

    async def _open(self, connection: socket.socket, *, is_secure: bool) -> Streams:
        reader = asyncio.StreamReader(limit=64 * 1024)
        protocol, loop = asyncio.StreamReaderProtocol(reader), asyncio.get_running_loop()
        transport, _ = await loop.connect_accepted_socket(
            lambda: protocol, connection, ssl=self._make_context() if is_secure else None
        )
        return reader, asyncio.StreamWriter(transport, protocol, reader, loop)

    def _make_context(self) -> ssl.SSLContext | None:
        """Return the context for the next handshake, made anew when the relay's certificate is replaced."""
        if self._identity is None:
            return None
        stamp = self._identity.stamp
        if self._context is None or self._context[0] != stamp:
            self._context = stamp, make_server_context(self._identity)
        return self._context[1]

    # Control connections.

    async def _serve_edge(self, streams: Streams) -> None:
        reader, writer = streams
        try:
            edge = await self._admit(reader, writer)
            self._limit.protect()
            if (older := self._waiting.get(edge.name)) is not None:
                older.writer.transport.abort()  # one for each name: a member must not use up the connections of all
            self._waiting[edge.name] = edge
            _log.info("%s waits here", edge.name)
            try:
                while (message := await receive_line(reader)) is not None:
                    self._check(edge)
                    await self._answer(edge, message)
            finally:
                if self._waiting.get(edge.name) is edge:
                    del self._waiting[edge.name]
                    _log.info("%s is gone", edge.name)
        finally:
            writer.transport.abort()

    async def _admit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> _Waiting:
        async with asyncio.timeout(_FIRST_SECONDS):
            message = await receive_line(reader)
        if message is None or message.get("protocol") != PROTOCOL or not isinstance(message.get("name"), str):
            raise IdentityError("bad-line", "An edge did not say who it is.")
        node, expires = NodeId(EDGE_ROLE, message["name"]), None
        if self._identity is not None:
            certificate = writer.get_extra_info("ssl_object").getpeercert()
            expires = ssl.cert_time_to_seconds(certificate["notAfter"])
            if _read_node(certificate) != node:
                raise IdentityError("wrong-role", f"A certificate is not that of {node}.")
        edge = _Waiting(node.name, writer, expires)
        self._check(edge)
        await send_line(writer, {"beat": True})
        return edge

    def _check(self, edge: _Waiting) -> None:
        """Raise `IdentityError` if an edge may not stay: its certificate has expired, or it was denied since."""
        if edge.name in self._denied:
            raise IdentityError("denied", f"{edge.name} is on the deny list.")
        if edge.expires is not None and datetime.now(UTC).timestamp() > edge.expires:
            raise IdentityError("expired", f"The certificate of {edge.name} has expired.")

    async def _answer(self, edge: _Waiting, message: dict[str, Any]) -> None:
        if message.get("ask") != "call":
            await send_line(edge.writer, {"beat": True})
            return
        name = secrets.token_hex(32)
        why = self._begin_session(name, edge.name, str(message.get("to")))
        self.refused_calls += bool(why)
        await send_line(edge.writer, {"id": message.get("id"), **({"error": why} if why else {"session": name})})

    def _begin_session(self, name: str, caller: str, callee: str) -> str:
        """Call an edge without waiting for it; returns why it cannot be called, in words, or nothing."""
        if callee not in self._waiting:
            return _NOT_HERE
        if why := self._find_limit(caller, callee):
            return why
        if not offer_line(self._waiting[callee].writer, {"call": name, "from": caller}):
            return _NOT_HERE
        session = self._sessions[name] = _Session(caller, callee)
        asyncio.get_running_loop().call_later(_PAIRING_SECONDS, self._drop_unpaired, name, session)
        return ""

    def _find_limit(self, caller: str, callee: str) -> str:
        """Return which limit a further session would exceed, in words; empty if none."""
        called = [session.callee for session in self._sessions.values() if session.caller == caller]
        if len(called) >= _MAX_SESSIONS or called.count(callee) >= _MAX_SESSIONS_TO_ONE:
            return f"{len(called)} calls are in progress"
        if 2 * (len(self._sessions) + 1) + len(self._waiting) + _RESERVED > _MAX_CONNECTIONS:
            return "the relay has no free connections"
        return ""

    def _drop_unpaired(self, name: str, session: _Session) -> None:
        if not session.is_paired.is_set():
            self._sessions.pop(name, None)
            session.is_over.set()

    # Sessions.

    async def _serve_session(self, streams: Streams) -> None:
        reader, writer = streams
        try:
            async with asyncio.timeout(_FIRST_SECONDS):
                line = await reader.readuntil()
            name = line.removeprefix(SESSION_START).strip().decode("ascii", "replace")
            session = self._sessions.get(name)
            if session is None or session.is_paired.is_set():
                raise IdentityError("unknown-session", "Nobody has asked for this session.")
            self._limit.protect()
            if session.first is None:
                session.first = streams
                await session.is_over.wait()
                return
            session.is_paired.set()
            try:
                passed = await splice(session.first, streams, self._count_bytes)
            finally:
                self._sessions.pop(name, None)
                session.is_over.set()
            _log.info("passed %d bytes on between %s and %s", passed, session.caller, session.callee)
        finally:
            writer.close()


async def _peek(connection: socket.socket) -> bytes:
    """Return the first byte of a connection without taking it."""
    loop, readable = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(connection, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(connection)
    return connection.recv(1, socket.MSG_PEEK)


def _find_reason(error: BaseException) -> str:
    """Return why a connection was refused, in one counted word; empty if the caller left by itself."""
    if isinstance(error, IdentityError):
        return error.reason
    if isinstance(error, TimeoutError):
        return "silent"
    if isinstance(error, asyncio.LimitOverrunError):
        return "bad-line"
    return "bad-certificate" if isinstance(error, ssl.SSLError) else ""


def _read_node(certificate: Any) -> NodeId:
    uris = [value for kind, value in certificate.get("subjectAltName", ()) if kind == "URI"]
    if len(uris) != 1:
        raise IdentityError("no-node-name", f"A certificate names {len(uris)} nodes, but must name exactly one.")
    return node_from_uri(uris[0])
