"""The coordinator's join server: a port of its own for nodes that have no certificate yet, or none that works.

One request per connection, one JSON line each way (two for a renewal), over TLS with the coordinator's certificate.

    {"ask": "authority"}                          {"ca": PEM}
    {"ask": "enroll", "token": …, "csr": PEM}     {"node": NAME, "cert": PEM, "ca": PEM}    "role" may say viewer
    {"ask": "renew", "cert": PEM, "csr": PEM}     {"challenge": TEXT}
    {"proof": SIGNATURE}, on that connection      {"node": NAME, "cert": PEM, "ca": PEM}
    {"ask": "explain", "cert": PEM}               {"reason": sentence or null}
    {"ask": "refuse", "word": WORD}               {}
    anything that is refused                      {"error": sentence, "word": one counted word}

Anybody can reach it, so connections, bytes and seconds are bounded. A refusal is one log line at most, which never
quotes a token, a key or a request. Callers that ask for nothing are counted, and share one log line a minute.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from types import TracebackType
from typing import Any, TypeVar

from hatdfed.deploy.identity.certificates import certificate_from_pem, format_time
from hatdfed.deploy.identity.files import IdentityFolder
from hatdfed.deploy.identity.identity_store import Enrolled, IdentityStore
from hatdfed.deploy.identity.join import (
    JOIN_PORT,
    MAX_LINE_BYTES,
    TIMEOUT_SECONDS,
    read_text,
    receive_line,
    send_line,
)
from hatdfed.deploy.identity.names import EDGE_ROLE
from hatdfed.deploy.identity.proofs import make_challenge
from hatdfed.deploy.threads import make_pool
from hatdfed.deploy.transport.connection_limit import ConnectionLimit
from hatdfed.errors import IdentityError

_log = logging.getLogger("hatdfed.deploy.identity.join_server")
_HANDSHAKE_SECONDS = 5.0
_THREADS = 4  # that sign; its own, so that nothing else in the process holds up who wants to join
_LOG_INTERVAL_SECONDS = 60.0  # between log lines about callers that ask for nothing

# Why an edge may say that it gave up by itself.
_GAVE_UP = {
    "wrong-pin": "It was given the pin of another authority.",
    "no-certificate": "It came in plain text, without a certificate.",
}

T = TypeVar("T")


class JoinServer:
    """Serves one identity store; use it as `async with JoinServer(store) as server`."""

    def __init__(
        self,
        store: IdentityStore,
        *,
        host: str = "",
        port: int = JOIN_PORT,
        max_connections: int = 32,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        self.refusals: Counter[str] = Counter()
        self._store = store
        self._address = (host, port)
        self._timeout_seconds = timeout_seconds
        # A connection counts from before its handshake, so that callers that never finish one are bounded, too.
        self._connections = ConnectionLimit(
            max_connections, self._serve, lambda caller: self._count_idle("crowded", caller)
        )
        self._threads: Executor | None = None  # until it serves
        self._idle_callers = 0  # since the last log line about them
        self._next_idle_log = 0.0

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self._socket.getsockname()[1])

    async def __aenter__(self) -> JoinServer:
        self._threads = make_pool(_THREADS, "join")
        self._tls = _TlsContext(self._store.identity)
        self._socket = _listen(*self._address)
        self._accepting = asyncio.create_task(self._connections.accept(self._socket))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._accepting.cancel()
        await asyncio.gather(self._accepting, return_exceptions=True)
        await self._connections.close()
        self._socket.close()
        if self._threads is not None:
            self._threads.shutdown(wait=False)

    async def _serve(self, connection: socket.socket, caller: str) -> None:
        try:
            async with asyncio.timeout(self._timeout_seconds):
                async with asyncio.timeout(min(self._timeout_seconds, _HANDSHAKE_SECONDS)):
                    reader, writer = await self._handshake(connection)
                try:
                    await send_line(writer, await self._answer(reader, writer, caller))
                    writer.close()
                    await writer.wait_closed()
                finally:
                    writer.transport.abort()
        except TimeoutError:
            self._count_idle("timeout", caller)
        except OSError as error:
            # Port scanners, and edges that found a wrong pin: no request was made, so none is refused.
            _log.debug("A caller from %s left early (%s).", caller, type(error).__name__)

    async def _handshake(self, connection: socket.socket) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=MAX_LINE_BYTES)
        protocol = asyncio.StreamReaderProtocol(reader)
        transport, _ = await loop.connect_accepted_socket(
            lambda: protocol,
            connection,
            ssl=self._tls.current(),
            ssl_handshake_timeout=self._timeout_seconds,
            ssl_shutdown_timeout=1.0,
        )
        return reader, asyncio.StreamWriter(transport, protocol, reader, loop)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, caller: str) -> dict[str, Any]:
        what = "a request"
        try:
            request = await receive_line(reader)
            ask = request.get("ask")
            if ask == "authority":
                return {"ca": self._store.authority.pem.decode()}
            if ask == "enroll":
                what = "a new node"
                return await self._enroll(request, caller)
            if ask == "renew":
                what = "a renewal"
                return await self._renew(request, reader, writer, caller)
            if ask == "explain":
                what = "an explanation"
                return self._explain(read_text(request, "cert"), caller)
            if ask == "refuse":
                self._log_gave_up(read_text(request, "word"), caller)
                return {}
            raise IdentityError("bad-field", "The field 'ask' must be authority, enroll, renew, explain or refuse.")
        except IdentityError as error:
            self._refuse(what, caller, error)
            return {"error": str(error), "word": error.reason}

    async def _enroll(self, request: dict[str, Any], caller: str) -> dict[str, Any]:
        token, csr = read_text(request, "token"), _read_bytes(request, "csr")
        role = read_text({"role": EDGE_ROLE, **request}, "role")
        self._connections.protect()  # once the token is used up, its certificate must reach the edge
        # In a thread: the use of the token is flushed to disk, which would hold up the event loop.
        return self._hand_out(await self._run_off_loop(self._store.enroll, token, csr, role), "joined", caller)

    async def _renew(
        self, request: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter, caller: str
    ) -> dict[str, Any]:
        cert, csr = _read_bytes(request, "cert"), _read_bytes(request, "csr")
        challenge = make_challenge()  # it is known on this connection only, so a proof cannot be used again
        await send_line(writer, {"challenge": challenge})
        proof = read_text(await receive_line(reader), "proof")
        renewed = await self._run_off_loop(self._store.renew_by_proof, cert, csr, challenge, proof)
        return self._hand_out(renewed, "renewed", caller)

    async def _run_off_loop(self, work: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)

    def _hand_out(self, enrolled: Enrolled, what: str, caller: str) -> dict[str, Any]:
        node, cert_pem = enrolled
        expires = certificate_from_pem(cert_pem, "Our own signature").not_valid_after_utc
        _log.info("%s %s from %s; its certificate expires %s.", node, what, caller, format_time(expires))
        return {"node": node.name, "cert": cert_pem.decode(), "ca": self._store.authority.pem.decode()}

    def _explain(self, cert: str, caller: str) -> dict[str, Any]:
        refused = self._store.check_certificate(cert.encode("utf-8", "replace"))
        if refused is None:
            return {"reason": None}
        self._refuse("a certificate", caller, refused)
        return {"reason": str(refused)}

    def _log_gave_up(self, word: str, caller: str) -> None:
        """Log why a caller gave up by itself."""
        if word not in _GAVE_UP:
            raise IdentityError("bad-field", f"The field 'word' must be one of {', '.join(_GAVE_UP)}.")
        self._refuse("a caller", caller, IdentityError(word, _GAVE_UP[word]))

    def _count_idle(self, word: str, caller: str) -> None:
        """Count a caller that asked for nothing until its time was over or another one needed its connection."""
        self.refusals[word] += 1
        self._idle_callers += 1
        if (now := time.monotonic()) >= self._next_idle_log:
            _log.warning(
                "Refused callers that asked for nothing: %d, the last from %s [%s]", self._idle_callers, caller, word
            )
            self._idle_callers, self._next_idle_log = 0, now + _LOG_INTERVAL_SECONDS

    def _refuse(self, what: str, caller: str, error: IdentityError) -> None:
        self.refusals[error.reason] += 1
        _log.warning("Refused %s from %s: %s [%s]", what, caller, error, error.reason, extra={"address": caller})


class _TlsContext:
    """The TLS context for new connections, made anew when the coordinator's certificate is renewed."""

    def __init__(self, folder: IdentityFolder) -> None:
        self._folder = folder
        self._stamp = self._folder.stamp
        self._context = self._load()

    def current(self) -> ssl.SSLContext:
        """Return the context for the next handshake."""
        with suppress(OSError, IdentityError):  # a damaged folder must not stop the server
            stamp = self._folder.stamp
            if stamp != self._stamp:
                self._context, self._stamp = self._load(), stamp
        return self._context

    def _load(self) -> ssl.SSLContext:
        self._folder.load()  # checked first: the TLS library would not say what is wrong
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.num_tickets = 0  # no connection is ever resumed
        context.load_cert_chain(self._folder.cert_file, self._folder.key_file)
        return context


def _read_bytes(request: dict[str, Any], key: str) -> bytes:
    return read_text(request, key).encode("utf-8", "replace")


def _listen(host: str, port: int) -> socket.socket:
    """Open a listener socket; without a host, on all IPv4 and IPv6 addresses."""
    try:
        if not host and socket.has_dualstack_ipv6():
            listener = socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
        else:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            listener = socket.create_server((host, port), family=family)
    except OSError as error:
        raise IdentityError(
            "port", f"The join server cannot listen on {host or '*'}:{port} ({error.strerror}). Choose another port."
        ) from None
    listener.setblocking(False)
    return listener
