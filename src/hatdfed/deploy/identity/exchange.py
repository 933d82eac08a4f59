"""One JSON line there, one back, over TLS 1.3: how a node talks to the front desk."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from hatdfed.deploy.identity.names import COORDINATOR
from hatdfed.errors import IdentityError

MAX_LINE_BYTES = 64 * 1024
TIMEOUT_SECONDS = 10.0
DESK_PORT = 7443


async def receive_line(reader: asyncio.StreamReader) -> dict[str, Any]:
    """The object in the next line; the reader's limit bounds its length."""
    try:
        line = await reader.readuntil(b"\n")
    except asyncio.LimitOverrunError:
        raise IdentityError("too-long", f"A line has more than the {MAX_LINE_BYTES} bytes allowed.") from None
    except asyncio.IncompleteReadError:
        raise IdentityError("cut-short", "The connection ended before a whole line came.") from None
    try:
        content = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        # What was sent is not quoted: it may hold a token.
        raise IdentityError("not-json", "A line is not a JSON object.")
    return content


async def send_line(writer: asyncio.StreamWriter, content: Mapping[str, Any]) -> None:
    """Send one object."""
    writer.write(json.dumps(content).encode() + b"\n")
    await writer.drain()


def text_of(content: Mapping[str, Any], key: str) -> str:
    """A field that must be text."""
    value = content.get(key)
    if not isinstance(value, str) or not value:
        raise IdentityError("bad-field", f"The field {key!r} is missing or is no text.")
    return value


def unverified() -> ssl.SSLContext:
    """For the one question that needs no trust: who is your authority?"""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def verified_by(ca_pem: bytes) -> ssl.SSLContext:
    """Believes only the coordinator, and only if this authority signed for it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(cadata=ca_pem.decode("ascii"))
    return context


async def ask_desk(host: str, port: int, context: ssl.SSLContext, request: Mapping[str, Any]) -> dict[str, Any]:
    """The front desk's answer; trouble on the way becomes one sentence."""
    where = f"The coordinator's front desk at {host}:{port}"
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            return await _ask(host, port, context, request)
    except ssl.SSLCertVerificationError as error:
        raise IdentityError(
            "not-the-coordinator",
            f"{where} did not prove that it is the coordinator ({error.verify_message}). Nothing was sent. "
            "Check the address and this machine's clock.",
        ) from None
    except IdentityError as error:
        raise IdentityError(error.reason, f"{where} did not answer like one. {error} Check the port.") from None
    except TimeoutError:
        raise IdentityError(
            "unreachable",
            f"{where} did not answer within {TIMEOUT_SECONDS:g} s. Check address, port and firewall; if they are "
            "right it may be busy, so try again.",
        ) from None
    except ssl.SSLError as error:
        raise IdentityError("not-a-desk", f"{where} does not talk like one ({error.reason}). Check the port.") from None
    except OSError as error:
        reason = error.strerror or str(error) or type(error).__name__
        raise IdentityError("unreachable", f"{where} cannot be reached ({reason}). Check address and port.") from None


async def _ask(host: str, port: int, context: ssl.SSLContext, request: Mapping[str, Any]) -> dict[str, Any]:
    reader, writer = await asyncio.open_connection(
        host, port, ssl=context, server_hostname=COORDINATOR.dns, limit=MAX_LINE_BYTES, ssl_shutdown_timeout=1.0
    )
    try:
        await send_line(writer, request)
        return await receive_line(reader)
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
