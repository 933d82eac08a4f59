"""An edge renews its certificate long before it ends, so that a run may outlive many of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import grpc

from hatdfed.errors import HatdfedError
from hatdfed.net.ends import Ends
from hatdfed.net.identity.renewal import accept_renewal, renewed
from hatdfed.net.protocol import hatdfed_pb2 as pb

_log = logging.getLogger("hatdfed.node")
_SECONDS = 20.0


async def renew_when_due(ends: Ends, stub: Callable[[], Any], hang_up: Callable[[], Awaitable[None]]) -> None:
    """Look again and again; a renewal that fails is tried again, there is a third of the lifetime left for it."""
    folder = ends.identity
    while folder is not None:
        try:
            if stub() is not None and folder.should_renew(datetime.now(UTC)):
                answer = await stub().Renew(pb.SigningRequest(csr=renewed(folder)), timeout=_SECONDS)
                accept_renewal(folder, answer.certificate)
                await hang_up()
                _log.info("the certificate is renewed until %s", folder.expires)
        except (grpc.aio.AioRpcError, HatdfedError) as error:
            _log.warning("the certificate could not be renewed yet: %s", error)
        left = (folder.expires - datetime.now(UTC)).total_seconds()
        await asyncio.sleep(min(_SECONDS, max(0.2, left / 10)))
