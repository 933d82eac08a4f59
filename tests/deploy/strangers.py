"""People without a certificate who open connections and leave them idle."""

import asyncio

from hatdfed.deploy.identity.join import ask_join_server, make_verified_context

HOST = "127.0.0.1"


class Drip:
    """Opens connections and sends a byte to each now and then; use as `async with Drip(port, 40) as drip`."""

    def __init__(self, port, count, every=0.1, bytes_of=b"\x16\x03\x01"):
        self.port, self.count, self.every, self.bytes_of = port, count, every, bytes_of

    async def __aenter__(self):
        self.connections = [await asyncio.open_connection(HOST, self.port) for _ in range(self.count)]
        self.dripping = asyncio.ensure_future(self._drip())
        return self

    async def __aexit__(self, *error):
        self.dripping.cancel()
        await asyncio.gather(self.dripping, return_exceptions=True)
        for _, writer in self.connections:
            writer.transport.abort()

    @property
    def alive(self):
        """How many of them have not been disconnected."""
        return sum(not (reader.at_eof() or reader.exception()) for reader, _ in self.connections)

    async def gone(self, left=0, seconds=5.0):
        """Wait until so few are left."""
        async with asyncio.timeout(seconds):
            while self.alive > left:
                await asyncio.sleep(0.02)

    async def _drip(self):
        place = 0
        while True:
            byte = self.bytes_of[place : place + 1] or b"\0"
            for reader, writer in self.connections:
                if not (reader.at_eof() or writer.is_closing()):
                    writer.write(byte)
            place += 1
            await asyncio.sleep(self.every)


async def authority_at(port, identity_store):
    """What somebody who wants to join asks first."""
    return await ask_join_server(HOST, port, make_verified_context(identity_store.authority.pem), {"ask": "authority"})
