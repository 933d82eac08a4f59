"""An edge's connection to the coordinator: calls, the stream of orders, renewal of the certificate, diagnosis."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import grpc

from hatdfed.deploy.identity.join import make_unverified_context
from hatdfed.deploy.identity.renewal import accept_renewal, make_renewal_request
from hatdfed.deploy.protocol import hatdfed_pb2 as pb
from hatdfed.deploy.protocol.hatdfed_pb2_grpc import CoordinationStub
from hatdfed.deploy.transport.endpoints import Endpoints
from hatdfed.errors import HatdfedError

CALL_SECONDS = 20.0
REFUSALS = {
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.UNIMPLEMENTED,
}
_log = logging.getLogger("hatdfed.deploy.edge")
_RENEWAL_CHECK_SECONDS = 20.0
_DIAGNOSIS_SECONDS = 5.0
_PLAIN_TEXT = {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE"}


class CoordinatorLink:
    """Calls the coordinator over the connection that is open at that moment."""

    def __init__(self) -> None:
        self.stub: Any = None
        self.epoch = 0
        self.refusal = ""
        self.is_refused = asyncio.Event()
        self.answered_at = 0.0  # when the coordinator last answered a call, in seconds since 1970; 0: never
        self.is_renewed = asyncio.Event()  # the certificate: the connection still shows the old one
        self._channel: grpc.aio.Channel | None = None
        self._closing: set[asyncio.Task[None]] = set()

    def connect(self, channel: grpc.aio.Channel) -> None:
        """Use this channel from now on; calls in progress may end on the one before."""
        old, self._channel, self.stub = self._channel, channel, self.make_stub(channel)
        if old is not None:
            task = asyncio.ensure_future(old.close(CALL_SECONDS))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def disconnect(self) -> None:
        """Close the channel; until the next one, calls are not made."""
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()

    @staticmethod
    def make_stub(channel: grpc.aio.Channel) -> Any:
        """Make the stub for calls over a channel."""
        return CoordinationStub(channel)

    async def report_lost_peer(self, t: int, peer: int) -> None:
        """Report that this edge no longer calls a peer in round t, so that the peer does not wait for it."""
        await self.call("Reached", pb.Reachable(epoch=self.epoch, lost=[peer], round=t))

    async def call(self, method: str, request: Any, seconds: float = CALL_SECONDS) -> Any:
        """Return the answer, or None while the coordinator is away; a refusal of this edge sets `is_refused`."""
        if self.stub is None:
            return None
        try:
            answer = await getattr(self.stub, method)(request, timeout=seconds)
            self.answered_at = time.time()
            return answer
        except grpc.aio.AioRpcError as error:
            # A certificate that has expired ends the stream of orders, and is renewed before the edge joins again.
            if error.code() in REFUSALS and error.code() != grpc.StatusCode.UNAUTHENTICATED:
                self.refusal = str(error.details())
                self.is_refused.set()
        except grpc.aio.UsageError:
            return None  # the channel is closed, and there is no new one yet
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            return None  # the channel was closed during the call
        return None


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


async def renew_certificate_when_due(
    endpoints: Endpoints, link: CoordinatorLink, on_renewed: Callable[[], None]
) -> None:
    """Renew the edge's certificate before it expires, again and again, so that a run may outlive many of them.

    A renewal that fails is tried again: a third of the certificate's lifetime is left for that.
    """
    folder, left = endpoints.identity, 0.0
    while folder is not None:
        try:
            if folder.should_renew(datetime.now(UTC)):
                answer = await link.call("Renew", pb.SigningRequest(csr=make_renewal_request(folder)))
                if answer is not None:
                    accept_renewal(folder, answer.certificate)
                    on_renewed()
                    _log.info("the certificate is renewed until %s", folder.expires)
            left = (folder.expires - datetime.now(UTC)).total_seconds()
        except HatdfedError as error:
            _log.warning("the certificate could not be renewed yet: %s", error)
        await asyncio.sleep(min(_RENEWAL_CHECK_SECONDS, max(0.2, left / 10)))


async def diagnose_connection(address: str, *, is_secure: bool) -> str | None:
    """Say whether only one of the two sides uses TLS, where gRPC just says that it cannot connect; None if not so."""
    speaks_tls = await _speaks_tls(address)
    if speaks_tls and not is_secure:
        return (
            f"The coordinator at {address} wants certificates, but this edge has none. Join with `hatdfed edge join` "
            "and start without --insecure."
        )
    if speaks_tls is False and is_secure:
        return (
            f"The coordinator at {address} speaks plain text, but this edge has a certificate. Start the coordinator "
            "with --ca, or this edge with --insecure to try things out."
        )
    return None


async def _speaks_tls(address: str) -> bool | None:
    """Return whether the server at host:port speaks TLS; None if there is none, or it cannot be told."""
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(_DIAGNOSIS_SECONDS):
            _, writer = await asyncio.open_connection(
                host.strip("[]"), int(port), ssl=make_unverified_context(), ssl_shutdown_timeout=1.0
            )
    except ssl.SSLError as error:
        return False if error.reason in _PLAIN_TEXT else None
    except (OSError, TimeoutError, ValueError):
        return None
    writer.close()
    with suppress(OSError, TimeoutError):
        await writer.wait_closed()
    return True
