"""Why a line cannot be opened, where gRPC only says that it cannot: one end wants TLS, the other plain text."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress

from hatdfed.deploy.identity.join import make_unverified_context

_SECONDS = 5.0
_PLAIN_TEXT = {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE"}


async def wrong_kind_of_line(address: str, *, is_secure: bool) -> str | None:
    """A sentence if whoever listens at `address` (host:port) speaks the other kind; None if it does not, or nobody."""
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
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(_SECONDS):
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
