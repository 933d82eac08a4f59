"""The coordinator's orders as one stream, over a connection that is replaced from time to time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import grpc

from hatdfed.deploy.edge.coordinator_link import CALL_SECONDS, CoordinatorLink
from hatdfed.deploy.protocol import hatdfed_pb2 as pb
from hatdfed.errors import HatdfedError

_log = logging.getLogger("hatdfed.deploy.edge")


class OrderStream:
    """Reads orders; the connection is replaced when it is old and when the certificate was renewed.

    The coordinator ends the old stream once the new one is open. The old one is read to its end before the new one, so
    no order is lost or repeated, and the edge stays ready all the time.
    """

    def __init__(self, link: CoordinatorLink, open_channel: Callable[[], grpc.aio.Channel], seconds: float) -> None:
        """A connection is replaced after `seconds`; 0: only when the certificate was renewed."""
        self._link = link
        self._open_channel = open_channel
        self._seconds = seconds
        self._call: Any = None
        self._replacing = asyncio.Lock()

    async def open(self) -> None:
        """Open the stream over the present connection: from now on no order is missed."""
        self._call = self._link.stub.Watch(pb.Watching(epoch=self._link.epoch))
        await asyncio.wait_for(self._call.initial_metadata(), CALL_SECONDS)

    async def read(self) -> AsyncIterator[pb.Order]:
        """Yield orders until the stream ends without a successor."""
        while True:
            call = self._call
            async for order in call:
                yield order
            async with self._replacing:
                if self._call is call:
                    return

    def cancel(self) -> None:
        """End the stream."""
        if self._call is not None:
            self._call.cancel()

    async def replace_when_due(self) -> None:
        """Replace the connection again and again."""
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._link.is_renewed.wait(), self._seconds or None)
            self._link.is_renewed.clear()
            async with self._replacing:
                await self._replace()

    async def _replace(self) -> None:
        try:
            channel = self._open_channel()
        except HatdfedError as error:
            _log.warning("the connection could not be replaced: %s", error)
            return
        call = self._link.make_stub(channel).Watch(pb.Watching(epoch=self._link.epoch))
        try:
            await asyncio.wait_for(call.initial_metadata(), CALL_SECONDS)
        except (grpc.aio.AioRpcError, TimeoutError):
            await channel.close()  # the old one goes on, or ends by itself
            return
        except BaseException:
            await channel.close()
            raise
        self._call = call
        self._link.connect(channel)
