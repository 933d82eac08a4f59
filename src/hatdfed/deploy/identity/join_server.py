"""The coordinator's front desk: a port of its own for those who have no certificate yet, or none that works.

One request a connection, one JSON line each way, over TLS with the coordinator's certificate.

    {"ask": "authority"}                          {"ca": PEM}
    {"ask": "enroll", "token": …, "csr": PEM}     {"node": NAME, "cert": PEM, "ca": PEM}
    {"ask": "explain", "cert": PEM}               {"reason": sentence or null}
    anything that is refused                      {"error": sentence, "word": one counted word}

Strangers can reach it, so all is bounded: connections, bytes, seconds. A refusal is one line in the log, in which no
token, key or request is quoted. Callers who ask for nothing are counted, and share a line a minute.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import time
from collections import Counter
from contextlib import suppress
from types import TracebackType
from typing import Any

from hatdfed.deploy.identity.certificates import certificate_from_pem, moment
from hatdfed.deploy.identity.exchange import (
    DESK_PORT,
    MAX_LINE_BYTES,
    TIMEOUT_SECONDS,
    receive_line,
    send_line,
    text_of,
)
from hatdfed.deploy.identity.identity_store import IdentityStore
from hatdfed.deploy.transport.connection_limit import ConnectionLimit
from hatdfed.errors import IdentityError

_log = logging.getLogger("hatdfed.deploy.identity.join_server")
_HANDSHAKE_SECONDS = 5.0
_HUSH_SECONDS = 60.0  # between lines about those who ask for nothing

_TURNED_AWAY = {
    "wrong-pin": "It was given the pin of another authority.",
    "no-certificate": "It came in plain text, without a certificate.",
}


class JoinServer:
    """Serves one office; use it as `async with JoinServer(office) as desk`."""

    def __init__(
        self,
        office: IdentityStore,
        *,
        host: str = "",
        port: int = DESK_PORT,
        max_connections: int = 32,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        self.refusals: Counter[str] = Counter()
        self._office = office
        self._address = (host, port)
        self._timeout_seconds = timeout_seconds
        # The place is taken before the handshake, so that those who never finish one are bounded, too.
        self._guests = ConnectionLimit(max_connections, self._serve, lambda caller: self._dawdled("crowded", caller))
        self._dawdlers = 0  # since the last line about them
        self._hushed_until = 0.0

    @property
    def port(self) -> int:
        """The port that is listened on."""
        return int(self._socket.getsockname()[1])

    async def __aenter__(self) -> JoinServer:
        self._certificate = _Certificate(self._office)
        self._socket = _listen(*self._address)
        self._accepting = asyncio.create_task(self._guests.accept(self._socket))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._accepting.cancel()
        await asyncio.gather(self._accepting, return_exceptions=True)
        await self._guests.end()
        self._socket.close()

    async def _serve(self, connection: socket.socket, caller: str) -> None:
        try:
            async with asyncio.timeout(self._timeout_seconds):
                async with asyncio.timeout(min(self._timeout_seconds, _HANDSHAKE_SECONDS)):
                    reader, writer = await self._shake_hands(connection)
                try:
                    await send_line(writer, await self._answer(reader, caller))
                    writer.close()
                    await writer.wait_closed()
                finally:
                    writer.transport.abort()
        except TimeoutError:
            self._dawdled("timeout", caller)
        except OSError as error:
            # Port scanners and edges that found a wrong pin: no request was made, so none is refused.
            _log.debug("A caller from %s left early (%s).", caller, type(error).__name__)

    async def _shake_hands(self, connection: socket.socket) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=MAX_LINE_BYTES)
        protocol = asyncio.StreamReaderProtocol(reader)
        transport, _ = await loop.connect_accepted_socket(
            lambda: protocol,
            connection,
            ssl=self._certificate.context(),
            ssl_handshake_timeout=self._timeout_seconds,
            ssl_shutdown_timeout=1.0,
        )
        return reader, asyncio.StreamWriter(transport, protocol, reader, loop)

    async def _answer(self, reader: asyncio.StreamReader, caller: str) -> dict[str, Any]:
        what = "a request"
        try:
            request = await receive_line(reader)
            ask = request.get("ask")
            if ask == "authority":
                return {"ca": self._office.authority.pem.decode()}
            if ask == "enroll":
                what = "a new edge"
                return await self._enroll(text_of(request, "token"), text_of(request, "csr"), caller)
            if ask == "explain":
                what = "an explanation"
                return self._explain(text_of(request, "cert"), caller)
            if ask == "refuse":
                self._note(text_of(request, "word"), caller)
                return {}
            raise IdentityError("bad-field", "The field 'ask' must be authority, enroll, explain or refuse.")
        except IdentityError as error:
            self._refuse(what, caller, error)
            return {"error": str(error), "word": error.reason}

    async def _enroll(self, token: str, csr: str, caller: str) -> dict[str, Any]:
        self._guests.keep()  # a token that is used up must not be lost on the way
        # In a thread: the token's use is flushed to the disk, and the loop has a fleet to serve.
        node, cert_pem = await asyncio.to_thread(self._office.enroll, token, csr.encode("utf-8", "replace"))
        ends = certificate_from_pem(cert_pem, "Our own signature").not_valid_after_utc
        _log.info("%s joined from %s; its certificate ends %s.", node, caller, moment(ends))
        return {"node": node.name, "cert": cert_pem.decode(), "ca": self._office.authority.pem.decode()}

    def _explain(self, cert: str, caller: str) -> dict[str, Any]:
        refused = self._office.refusal(cert.encode("utf-8", "replace"))
        if refused is None:
            return {"reason": None}
        self._refuse("a certificate", caller, refused)
        return {"reason": str(refused)}

    def _note(self, word: str, caller: str) -> None:
        """A caller turned away by itself, and says why."""
        if word not in _TURNED_AWAY:
            raise IdentityError("bad-field", f"The field 'word' must be one of {', '.join(_TURNED_AWAY)}.")
        self._refuse("a caller", caller, IdentityError(word, _TURNED_AWAY[word]))

    def _dawdled(self, word: str, caller: str) -> None:
        """A caller held a place and asked for nothing, until its time was over or another needed the place."""
        self.refusals[word] += 1
        self._dawdlers += 1
        if (now := time.monotonic()) >= self._hushed_until:
            _log.warning(
                "Refused callers that asked for nothing: %d, the last from %s [%s]", self._dawdlers, caller, word
            )
            self._dawdlers, self._hushed_until = 0, now + _HUSH_SECONDS

    def _refuse(self, what: str, caller: str, error: IdentityError) -> None:
        self.refusals[error.reason] += 1
        _log.warning("Refused %s from %s: %s [%s]", what, caller, error, error.reason)


class _Certificate:
    """The coordinator's certificate for new connections; a renewed one is picked up from its folder."""

    def __init__(self, office: IdentityStore) -> None:
        self._folder = office.identity
        self._stamp = self._folder.stamp
        self._context = self._fresh()

    def context(self) -> ssl.SSLContext:
        """What the next handshake is made with."""
        with suppress(OSError, IdentityError):  # a folder in disorder must not close the desk
            stamp = self._folder.stamp
            if stamp != self._stamp:
                self._context, self._stamp = self._fresh(), stamp
        return self._context

    def _fresh(self) -> ssl.SSLContext:
        self._folder.load()  # says in a sentence what the TLS library would not
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.num_tickets = 0  # nobody comes back to a connection of one line
        context.load_cert_chain(self._folder.cert_file, self._folder.key_file)
        return context


def _listen(host: str, port: int) -> socket.socket:
    """A listening socket; without a host, on all addresses of both kinds."""
    try:
        if not host and socket.has_dualstack_ipv6():
            listening = socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
        else:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            listening = socket.create_server((host, port), family=family)
    except OSError as error:
        raise IdentityError(
            "port", f"The front desk cannot listen on {host or '*'}:{port} ({error.strerror}). Choose another port."
        ) from None
    listening.setblocking(False)
    return listening
