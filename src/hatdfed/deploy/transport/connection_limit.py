"""Bounds the connections of a port that anybody can reach.

A new caller is served soon. When all connections are taken, the oldest caller of the address that holds most of them is
disconnected after a short grace period, so those who open connections and then idle only disconnect each other.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable

_log = logging.getLogger("hatdfed.deploy.transport.connection_limit")
_RETRY_SECONDS = 0.1
_GRACE_SECONDS = 1.0  # an honest caller is done by then; many that come at once only wait for each other


class ConnectionLimit:
    """Accepts at most `max_connections` callers at a time; `serve` handles each and closes its connection."""

    def __init__(
        self,
        max_connections: int,
        serve: Callable[[socket.socket, str], Awaitable[None]],
        on_evicted: Callable[[str], None] = lambda address: None,
    ) -> None:
        self._max_connections = max_connections
        self._serve = serve
        self._on_evicted = on_evicted  # called with the address
        self._tasks: set[asyncio.Task[None]] = set()
        # Callers that can be evicted, oldest first: their addresses, and when they connected.
        self._evictable: dict[asyncio.Task[None], tuple[str, float]] = {}

    async def accept(self, listener: socket.socket) -> None:
        """Accept callers until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, address = await loop.sock_accept(listener)
            except OSError as error:
                _log.warning("A connection cannot be accepted (%s).", error.strerror)
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            try:
                await self._make_room()
            except BaseException:
                connection.close()
                raise
            self._start(connection, str(address[0]))
            await asyncio.sleep(0)  # its task begins, and so owns the connection, before anything can cancel it

    def protect(self) -> None:
        """Exempt the caller that the current task serves from eviction: its request is being carried out."""
        if (task := asyncio.current_task()) is not None:
            self._evictable.pop(task, None)

    async def close(self) -> None:
        """Disconnect all callers."""
        await asyncio.sleep(0)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _start(self, connection: socket.socket, address: str) -> None:
        task = asyncio.ensure_future(self._serve(connection, address))
        self._tasks.add(task)
        self._evictable[task] = address, time.monotonic()
        task.add_done_callback(self._remove)

    def _remove(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._evictable.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("A caller was not served.", exc_info=error)

    async def _make_room(self) -> None:
        """Wait until there is room for one more connection; evict a caller if that takes too long."""
        while len(self._tasks) >= self._max_connections:
            grace = None  # if all callers are protected, wait as long as it takes
            if self._evictable:
                oldest = self._next_to_evict()
                grace = self._evictable[oldest][1] + _GRACE_SECONDS - time.monotonic()
                if grace <= 0:
                    await self._evict(oldest)
                    continue
            await asyncio.wait(self._tasks, timeout=grace, return_when=asyncio.FIRST_COMPLETED)

    def _next_to_evict(self) -> asyncio.Task[None]:
        held = Counter(address for address, _ in self._evictable.values())
        return max(self._evictable, key=lambda task: held[self._evictable[task][0]])  # of equals the first: the oldest

    async def _evict(self, task: asyncio.Task[None]) -> None:
        address, _ = self._evictable.pop(task)
        task.cancel()
        await asyncio.wait({task})
        if task.cancelled():
            self._on_evicted(address)
