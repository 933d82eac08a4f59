"""A bad network on loopback: a proxy that forwards TCP connections at a limited rate and cuts them."""

from __future__ import annotations

import asyncio
import socket
import time
from types import TracebackType

_READ_BYTES = 16 * 1024
_BUFFER_BYTES = 128 * 1024  # small, so that few bytes are on their way when a connection is cut


class _Pace:
    """Lets bytes pass at a steady rate, whatever the number of connections."""

    def __init__(self, bytes_per_second: float | None) -> None:
        self._rate = bytes_per_second
        self._free_at = 0.0

    async def wait(self, num_bytes: int) -> None:
        if self._rate is None:
            return
        self._free_at = max(self._free_at, time.monotonic()) + num_bytes / self._rate
        await asyncio.sleep(self._free_at - time.monotonic())


class BadLink:
    """One link to `target`; use it as `async with BadLink(target) as link` and dial `link.port`.

    Every connection is cut after `cut_after_bytes` in one direction, and all of them whenever `cut` is called.
    """

    def __init__(
        self,
        target: tuple[str, int],
        *,
        bytes_per_second: float | None = None,
        cut_after_bytes: int | None = None,
        port: int = 0,
    ) -> None:
        self._target = target
        self._address = ("127.0.0.1", port)
        self._paces = (_Pace(bytes_per_second), _Pace(bytes_per_second))
        self._cut_after_bytes = cut_after_bytes
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.forwarded = 0  # bytes, in both directions
        self.cuts = 0  # connections that were cut

    async def __aenter__(self) -> BadLink:
        listener = socket.create_server(self._address)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
        self.port = int(listener.getsockname()[1])
        self._server = await asyncio.start_server(self._serve, sock=listener, limit=_READ_BYTES)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        self.cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Cut all connections at once, without a word to either side."""
        self.cuts += len(self._open) // 2
        for writer in self._open:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        try:
            onward = await self._dial()
        except OSError:
            writer.transport.abort()
            return
        for each in (writer, onward[1]):
            each.transport.set_write_buffer_limits(_READ_BYTES)
            each.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
        self._open |= {writer, onward[1]}
        try:
            there = asyncio.ensure_future(self._forward(reader, onward[1], self._paces[0]))
            back = asyncio.ensure_future(self._forward(onward[0], writer, self._paces[1]))
            await asyncio.wait({there, back}, return_when=asyncio.FIRST_COMPLETED)
            for task in (there, back):
                task.cancel()
            await asyncio.gather(there, back, return_exceptions=True)
        finally:
            self._open -= {writer, onward[1]}
            for each in (writer, onward[1]):
                each.close()

    async def _dial(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)  # has an effect only before it dials
        connection.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(connection, self._target)
            return await asyncio.open_connection(sock=connection, limit=_READ_BYTES)
        except BaseException:
            connection.close()
            raise

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pace: _Pace) -> None:
        passed = 0
        while data := await reader.read(_READ_BYTES):
            await pace.wait(len(data))
            writer.write(data)
            await writer.drain()
            self.forwarded += len(data)
            passed += len(data)
            if self._cut_after_bytes is not None and passed > self._cut_after_bytes:
                self.cuts += 1
                break
        writer.close()
