"""How a new edge or viewer gets its certificate from the coordinator's join server, and how a refused one learns why.

The operator gives the edge a token and the pin of the authority. The edge first asks the join server for the
authority's certificate, trusting nothing, and compares it with the pin. Then it connects again, now trusting only that
authority, and sends the token and a signing request. The private key is made on the edge and never leaves it.

Every request is one JSON line over TLS 1.3, and so is every answer; `join_server` lists them. A challenge is answered
over the same connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import re
import ssl
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from cryptography import x509

from hatdfed.deploy.identity.certificates import (
    certificate_from_pem,
    certificate_to_pem,
    check_certificate,
    compute_pin,
    format_time,
    is_same_key,
    make_csr,
    make_key,
    node_from_certificate,
)
from hatdfed.deploy.identity.files import Identity, IdentityFolder
from hatdfed.deploy.identity.names import COORDINATOR, EDGE_ROLE
from hatdfed.deploy.identity.private_files import check_writable
from hatdfed.errors import IdentityError

MAX_LINE_BYTES = 64 * 1024
TIMEOUT_SECONDS = 10.0
JOIN_PORT = 7443
_PIN = re.compile(r"sha256:[0-9a-f]{64}")


async def join(host: str, port: int, token: str, pin: str, folder: IdentityFolder, role: str = EDGE_ROLE) -> Identity:
    """Become a node of the deployment; key and certificate are written to `folder`."""
    wanted = _parse_pin(pin)
    _refuse_if_taken(folder)
    check_writable(folder.path)  # before the token is spent
    authority = await _fetch_authority(host, port, wanted)
    ca_pem, key = certificate_to_pem(authority), make_key()
    request = {"ask": "enroll", "token": token, "csr": make_csr(key).decode("ascii"), "role": role}
    answer = await ask_join_server(host, port, make_verified_context(ca_pem), request)
    raise_if_refused(answer)
    cert_pem = read_text(answer, "cert").encode("utf-8", "replace")
    certificate = certificate_from_pem(cert_pem, "The coordinator's answer")
    refused = check_certificate(certificate, authority, datetime.now(UTC))
    if refused is not None:
        raise refused
    is_own = is_same_key(certificate.public_key(), key.public_key())
    if not is_own or node_from_certificate(certificate).role != role:
        raise IdentityError(
            "mismatch", f"The coordinator sent a certificate that is not for this {role}. Ask its operator."
        )
    return folder.save(key, certificate_to_pem(certificate), ca_pem)


async def explain_refusal(host: str, port: int, folder: IdentityFolder) -> str | None:
    """Ask why the coordinator refuses this node's certificate; None if it does not. The coordinator logs it, too."""
    identity = folder.read()
    request = {"ask": "explain", "cert": identity.cert_pem.decode("ascii")}
    try:
        answer = await ask_join_server(host, port, make_verified_context(identity.ca_pem), request)
    except IdentityError as error:
        if error.reason == "not-the-coordinator":  # a certificate is no secret: another deployment may log who came
            with contextlib.suppress(IdentityError):
                await ask_join_server(host, port, make_unverified_context(), request)
        raise
    raise_if_refused(answer)
    return None if answer.get("reason") is None else read_text(answer, "reason")


async def report_refusal(host: str, port: int, word: str) -> None:
    """Tell the coordinator why this node gave up, for its log. Nothing secret is sent and no answer is trusted."""
    with contextlib.suppress(IdentityError):
        await ask_join_server(host, port, make_unverified_context(), {"ask": "refuse", "word": word})


async def _fetch_authority(host: str, port: int, pin: str) -> x509.Certificate:
    answer = await ask_join_server(host, port, make_unverified_context(), {"ask": "authority"})
    # Only the one certificate that is compared with the pin is used, whatever else the text holds.
    authority = certificate_from_pem(str(answer.get("ca")).encode("utf-8", "replace"), f"The answer of {host}:{port}")
    if not hmac.compare_digest(compute_pin(authority), pin):
        await report_refusal(host, port, "wrong-pin")
        raise IdentityError(
            "wrong-pin",
            f"The authority at {host}:{port} is not the one of the pin {pin}. The token was not sent. "
            "Check address and pin; if both are right, somebody is in between.",
        )
    return authority


def _parse_pin(pin: str) -> str:
    lowered = pin.strip().lower()
    if not _PIN.fullmatch(lowered):
        raise IdentityError(
            "bad-pin", f"The pin is {pin!r:.80}, but must be sha256: and 64 hex digits, as `token create` prints it."
        )
    return lowered


def _refuse_if_taken(folder: IdentityFolder) -> None:
    try:
        present = folder.load()
    except IdentityError:
        return  # nothing there, or nothing that still works
    raise IdentityError(
        "exists",
        f"{folder.path} already holds the identity of {present.node}, valid until {format_time(present.expires)}. "
        "Start the edge with it, or choose another folder.",
    )


def raise_if_refused(answer: Mapping[str, Any]) -> None:
    """Raise the error that the join server answered, if it did."""
    if "error" in answer:
        sentence, word = answer["error"], answer.get("word")
        raise IdentityError(str(word or "refused"), f"The coordinator refused: {sentence}")


# The exchange itself: one JSON line each way.


def make_unverified_context() -> ssl.SSLContext:
    """Make a TLS context that trusts anybody, for requests that neither send secrets nor believe the answer."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def make_verified_context(ca_pem: bytes) -> ssl.SSLContext:
    """Make a TLS context that trusts only certificates of this authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(cadata=ca_pem.decode("ascii"))
    return context


Reply = Callable[[Mapping[str, Any]], Mapping[str, Any]]


async def ask_join_server(
    host: str, port: int, context: ssl.SSLContext, request: Mapping[str, Any], reply: Reply | None = None
) -> dict[str, Any]:
    """Send one request to the join server and return its answer; failures become an `IdentityError`.

    A challenge is answered by `reply`, and what follows it is returned.
    """
    where = f"The coordinator's join server at {host}:{port}"
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            return await _ask(host, port, context, request, reply)
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


async def _ask(
    host: str, port: int, context: ssl.SSLContext, request: Mapping[str, Any], reply: Reply | None
) -> dict[str, Any]:
    reader, writer = await asyncio.open_connection(
        host, port, ssl=context, server_hostname=COORDINATOR.dns, limit=MAX_LINE_BYTES, ssl_shutdown_timeout=1.0
    )
    try:
        await send_line(writer, request)
        answer = await receive_line(reader)
        if reply is not None and "challenge" in answer:
            await send_line(writer, reply(answer))
            answer = await receive_line(reader)
        return answer
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def receive_line(reader: asyncio.StreamReader) -> dict[str, Any]:
    """Read one line and parse it as a JSON object; the reader's limit bounds its length."""
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
    """Send an object as one JSON line."""
    writer.write(json.dumps(content).encode() + b"\n")
    await writer.drain()


def read_text(content: Mapping[str, Any], key: str) -> str:
    """Return a field that must be a non-empty string."""
    value = content.get(key)
    if not isinstance(value, str) or not value:
        raise IdentityError("bad-field", f"The field {key!r} is missing or is no text.")
    return value
