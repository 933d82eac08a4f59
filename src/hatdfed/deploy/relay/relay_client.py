"""An edge's side of the relay: it waits there for calls, and makes calls through it.

gRPC knows nothing of the relay: it dials, and listens at, sockets in a folder of this process, whose bytes are passed
on to and from the relay.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import random
import shutil
import socket
import tempfile
import time
from collections.abc import Container, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

from hatdfed.deploy.identity.names import NodeId
from hatdfed.deploy.relay.wire import (
    BEAT_SECONDS,
    MAX_LINE_BYTES,
    PROTOCOL,
    SESSION_START,
    Streams,
    make_client_context,
    receive_line,
    send_line,
    splice,
)
from hatdfed.deploy.transport.endpoints import Endpoints
from hatdfed.errors import HatdfedError, IdentityError

_log = logging.getLogger("hatdfed.deploy.edge")
_CONNECT_SECONDS = 10.0
_GRACE_SECONDS = 20.0  # that a lost connection to the relay may take to be replaced
_MAX_ANSWERING = 256  # calls at a time, each with two connections: a relay could announce any number


class RelayClient:
    """Keeps a connection to the relay, and one socket for every peer that is called through it."""

    def __init__(
        self, endpoints: Endpoints, relay: NodeId, address: tuple[str, int], denied: Container[str] = ()
    ) -> None:
        self._endpoints = endpoints
        self._relay = relay
        self._host, self._port = address
        self._denied = denied
        self._folder = Path(tempfile.mkdtemp(prefix="hatdfed-"))  # only its owner can enter it
        self._writer: asyncio.StreamWriter | None = None
        self._answers: dict[int, asyncio.Future[str]] = {}
        self._numbers = itertools.count()
        self._servers: dict[str, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._answering: set[asyncio.Task[None]] = set()  # of these, the calls of others
        self._registered = asyncio.Event()
        self._lost_at = -math.inf  # when the last connection was lost

    @property
    def listen_address(self) -> str:
        """Where the own gRPC server listens for calls that come through the relay."""
        return f"unix:{self._folder / 'own'}"

    @property
    def is_registered(self) -> bool:
        """Whether this edge can be called just now."""
        return self._registered.is_set()

    @property
    def is_usable(self) -> bool:
        """Whether this edge can be called, or could be a moment ago: a connection that was lost is soon replaced."""
        return self.is_registered or time.monotonic() < self._lost_at + _GRACE_SECONDS

    def start(self) -> None:
        """Connect, and connect again whenever the connection is lost."""
        self._start_task(self._stay_registered())

    async def wait_until_registered(self, seconds: float) -> bool:
        """Wait until this edge can be called; returns whether it can."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._registered.wait(), seconds)
        return self.is_registered

    async def close(self) -> None:
        """End all connections."""
        tasks = [*self._tasks, *self._servers.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        shutil.rmtree(self._folder, ignore_errors=True)

    def find_address(self, peer: NodeId) -> str:
        """Return the address at which gRPC reaches a peer through the relay."""
        path = self._folder / f"{peer.name}.peer"
        if peer.name not in self._servers:
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            listener.bind(str(path))
            listener.listen()
            listener.setblocking(False)
            self._servers[peer.name] = asyncio.ensure_future(self._accept(listener, peer.name))
        return f"unix:{path}"

    # The control connection.

    async def _stay_registered(self) -> None:
        is_told = False
        while True:
            try:
                await self._register()
            except (OSError, HatdfedError, TimeoutError) as error:
                if not is_told:
                    _log.warning("the relay at %s:%d cannot be used (%s); trying again", self._host, self._port, error)
                is_told = True
            finally:
                is_told &= not self.is_registered
                if self.is_registered:
                    self._lost_at = time.monotonic()
                self._registered.clear()
                self._fail_calls()
            await asyncio.sleep(0.2 + 0.8 * random.random())  # noqa: S311 (so that not all edges come at once)

    async def _register(self) -> None:
        """Be registered until the connection is lost."""
        identity = self._endpoints.identity
        context = None if identity is None else make_client_context(identity)
        async with asyncio.timeout(_CONNECT_SECONDS):
            reader, writer = await asyncio.open_connection(
                self._host,
                self._port,
                limit=MAX_LINE_BYTES,
                ssl=context,
                server_hostname=None if context is None else self._relay.dns,
            )
        beating = asyncio.ensure_future(self._beat(writer))
        try:
            await send_line(writer, {"protocol": PROTOCOL, "name": self._endpoints.node.name})
            while (message := await receive_line(reader)) is not None:
                self._writer = writer
                self._registered.set()
                self._take(message)
        finally:
            self._writer = None
            beating.cancel()
            writer.transport.abort()
            await asyncio.gather(beating, return_exceptions=True)

    async def _beat(self, writer: asyncio.StreamWriter) -> None:
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            await send_line(writer, {"beat": True})

    def _take(self, message: dict[str, Any]) -> None:
        """Handle a message of the relay, which may be hostile: one that makes no sense is ignored."""
        if isinstance(number := message.get("id"), int):
            self._take_answer(number, message)
        elif isinstance(session := message.get("call"), str) and isinstance(caller := message.get("from"), str):
            self._take_call(session, caller)

    def _take_answer(self, number: int, message: dict[str, Any]) -> None:
        answer = self._answers.get(number)
        if answer is None or answer.done():
            return
        if "session" in message:
            answer.set_result(str(message["session"]))
        else:
            answer.set_exception(IdentityError("not-here", str(message.get("error"))))

    def _take_call(self, session: str, caller: str) -> None:
        if caller in self._denied:
            return
        if len(self._answering) >= _MAX_ANSWERING:
            _log.debug("a call of %s through the relay is one too many", caller)
            return
        task = self._start_task(self._answer_call(session))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    def _fail_calls(self) -> None:
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(IdentityError("not-here", "the connection to the relay was lost"))

    # Sessions.

    async def _accept(self, listener: socket.socket, peer: str) -> None:
        """Accept gRPC's connections to a peer."""
        loop = asyncio.get_running_loop()
        with listener:
            while True:
                connection, _ = await loop.sock_accept(listener)
                self._start_task(self._make_call(connection, peer))

    async def _make_call(self, connection: socket.socket, peer: str) -> None:
        own = await asyncio.open_unix_connection(sock=connection)
        try:
            await splice(own, await self._open_session(await self._ask_for_session(peer)))
        except (OSError, HatdfedError, TimeoutError) as error:
            _log.debug("%s could not be called through the relay: %s", peer, error)
        finally:
            own[1].transport.abort()

    async def _ask_for_session(self, peer: str) -> str:
        await self.wait_until_registered(_CONNECT_SECONDS)
        if self._writer is None:
            raise IdentityError("not-here", "there is no connection to the relay")
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        try:
            await send_line(self._writer, {"ask": "call", "to": peer, "id": number})
            return await asyncio.wait_for(answer, _CONNECT_SECONDS)
        finally:
            del self._answers[number]

    async def _answer_call(self, session: str) -> None:
        try:
            own = await asyncio.open_unix_connection(str(self._folder / "own"))
            try:
                await splice(own, await self._open_session(session))
            finally:
                own[1].transport.abort()
        except (OSError, TimeoutError) as error:
            _log.debug("a call through the relay could not be answered: %s", error)

    async def _open_session(self, session: str) -> Streams:
        async with asyncio.timeout(_CONNECT_SECONDS):
            reader, writer = await asyncio.open_connection(self._host, self._port)
        writer.write(SESSION_START + session.encode("ascii", "replace") + b"\n")
        return reader, writer

    def _start_task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
