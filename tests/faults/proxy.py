"""A proxy on loopback that does to a connection what bad networks do: delay, flip, reset, stall, drip, one-way loss.

Faults are attributes that may change at any time. Bytes of one connection keep their order, as TCP promises; chunks of
different connections overtake each other.
"""

import asyncio
import contextlib
import random
import socket
import struct
from dataclasses import dataclass, field

UP, DOWN = "up", "down"  # from the client to the server, and back
_CHUNK = 16 * 1024


@dataclass
class Faults:
    """What happens to the bytes of all connections."""

    delay: float = 0.0  # seconds
    jitter: float = 0.0  # more or less
    bytes_per_second: float | None = None
    blocked: set = field(default_factory=set)  # directions whose bytes are held back; both: a half-open connection
    flip_at: int | None = None  # the byte of a connection, counted upwards, of which one bit is changed
    flips: int = 10**9  # how many connections are damaged
    reset_at: int | None = None  # after so many bytes upwards a connection is reset
    resets: int = 10**9


class FaultProxy:
    """Use as `async with FaultProxy(port) as proxy`, and dial `proxy.port`."""

    def __init__(self, target, seed=0):
        self.target, self.faults = target, Faults()
        self.carried = {UP: 0, DOWN: 0}  # bytes
        self.connections = 0
        self._rng = random.Random(seed)  # noqa: S311
        self._tasks = set()

    @property
    def port(self):
        return self._server.sockets[0].getsockname()[1]

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_):
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connect(self, reader, writer):
        self.connections += 1
        self._tasks.add(asyncio.current_task())
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            _reset(writer)
            self._tasks.discard(asyncio.current_task())
            return
        pumps = [
            asyncio.ensure_future(_Pump(self, UP, reader, back).run()),
            asyncio.ensure_future(_Pump(self, DOWN, there, writer).run()),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            for end in (writer, back):
                _reset(end)
            self._tasks.discard(asyncio.current_task())


class _Pump:
    """Carries the bytes of one direction of one connection."""

    def __init__(self, proxy, direction, reader, writer):
        self._proxy, self._direction, self._reader, self._writer = proxy, direction, reader, writer
        self._passed = 0
        self._free_at = 0.0  # when the last chunk has arrived: none overtakes another

    async def run(self):
        with contextlib.suppress(OSError):
            while data := await self._reader.read(_CHUNK):
                await self._carry(data)

    async def _carry(self, data):
        faults = self._proxy.faults
        await self._wait(len(data))
        if self._direction == UP:
            data = self._damage(data)
            if faults.resets and faults.reset_at is not None and self._passed + len(data) > faults.reset_at:
                faults.resets -= 1
                raise ConnectionResetError
        self._passed += len(data)
        self._proxy.carried[self._direction] += len(data)
        await self._write(data)

    async def _write(self, data):
        rate = self._proxy.faults.bytes_per_second
        if rate is None:
            self._writer.write(data)
            await self._writer.drain()
            return
        for place in range(len(data)):  # byte by byte, for as long as the fault lasts
            self._writer.write(data[place : place + 1])
            await self._writer.drain()
            if self._proxy.faults.bytes_per_second is None:
                self._writer.write(data[place + 1 :])
                return
            await asyncio.sleep(1 / rate)

    async def _wait(self, size):
        faults = self._proxy.faults
        while self._direction in faults.blocked:
            await asyncio.sleep(0.02)
        if faults.delay or faults.jitter:
            await asyncio.sleep(max(0.0, faults.delay + faults.jitter * self._proxy._rng.uniform(-1, 1)))

    def _damage(self, data):
        faults = self._proxy.faults
        if faults.flips and faults.flip_at is not None and self._passed <= faults.flip_at < self._passed + len(data):
            faults.flips -= 1
            place = faults.flip_at - self._passed
            return data[:place] + bytes([data[place] ^ 0x10]) + data[place + 1 :]
        return data


def _reset(writer):
    """Close a connection as an error does, with RST in place of FIN."""
    found = writer.get_extra_info("socket")
    if found is not None:
        with contextlib.suppress(OSError):
            found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
