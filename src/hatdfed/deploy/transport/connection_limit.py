"""Strangers at a port that anybody can reach: so many at a time, each for so long, and nobody fills the room.

A newcomer gets in soon. When all places are taken, the oldest caller of the address that has most of them gives way
after a short grace, so those who open connections and then dawdle only push each other out.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable

_log = logging.getLogger("hatdfed.deploy.transport.connection_limit")
_PAUSE_SECONDS = 0.1
_GRACE_SECONDS = 1.0  # a caller in earnest is done by then; many that come at once only wait for each other


class ConnectionLimit:
    """All callers of one listening socket; `serve` has each of them to itself and closes the connection."""

    def __init__(
        self,
        places: int,
        serve: Callable[[socket.socket, str], Awaitable[None]],
        pushed_out: Callable[[str], None] = lambda address: None,
    ) -> None:
        self._places = places
        self._serve = serve
        self._pushed_out = pushed_out  # told the address
        self._tasks: set[asyncio.Task[None]] = set()
        # Those who can be pushed out, oldest first: their addresses, and since when they have been here.
        self._waiting: dict[asyncio.Task[None], tuple[str, float]] = {}

    async def accept(self, listening: socket.socket) -> None:
        """Take callers in, for ever."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, address = await loop.sock_accept(listening)
            except OSError as error:
                _log.warning("A caller cannot be taken in (%s).", error.strerror)
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            try:
                await self._make_room()
            except BaseException:
                connection.close()
                raise
            self._take_in(connection, str(address[0]))
            await asyncio.sleep(0)  # its task begins, and so owns the connection, before anything can cancel it

    def keep(self) -> None:
        """The caller who is served by this task is not pushed out any more: what it asked for is being done."""
        if (task := asyncio.current_task()) is not None:
            self._waiting.pop(task, None)

    async def end(self) -> None:
        """Send all home."""
        await asyncio.sleep(0)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _take_in(self, connection: socket.socket, address: str) -> None:
        task = asyncio.ensure_future(self._serve(connection, address))
        self._tasks.add(task)
        self._waiting[task] = address, time.monotonic()
        task.add_done_callback(self._leave)

    def _leave(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._waiting.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("A caller was not served.", exc_info=error)

    async def _make_room(self) -> None:
        while len(self._tasks) >= self._places:
            grace = None  # as long as it takes, where all are being helped
            if self._waiting:
                oldest = self._next_out()
                grace = self._waiting[oldest][1] + _GRACE_SECONDS - time.monotonic()
                if grace <= 0:
                    await self._push_out(oldest)
                    continue
            await asyncio.wait(self._tasks, timeout=grace, return_when=asyncio.FIRST_COMPLETED)

    def _next_out(self) -> asyncio.Task[None]:
        held = Counter(address for address, _ in self._waiting.values())
        return max(self._waiting, key=lambda task: held[self._waiting[task][0]])  # the first of those, so the oldest

    async def _push_out(self, task: asyncio.Task[None]) -> None:
        address, _ = self._waiting.pop(task)
        task.cancel()
        await asyncio.wait({task})
        if task.cancelled():
            self._pushed_out(address)
