"""How a new edge gets its certificate, and how one that is shut out learns why.

The edge is given two things by its operator: a token, and the pin of the authority. First it asks the front desk for
the authority, believing nothing, and holds that against the pin. Then it connects again, now believing that authority
alone, and sends the token and a signing request. The private key is made here and stays here.
"""

from __future__ import annotations

import contextlib
import hmac
import re
from datetime import UTC, datetime

from cryptography import x509

from hatdfed.deploy.identity.certificates import certificate_from_pem, moment, node_of, pin_of, refusal, to_pem
from hatdfed.deploy.identity.exchange import ask_desk, text_of, unverified, verified_by
from hatdfed.deploy.identity.files import Identity, IdentityFolder
from hatdfed.deploy.identity.keys import csr, make_key, same_key
from hatdfed.deploy.identity.names import EDGE_ROLE
from hatdfed.deploy.identity.private_files import check_writable
from hatdfed.errors import IdentityError

_PIN = re.compile(r"sha256:[0-9a-f]{64}")


async def join(host: str, port: int, token: str, pin: str, folder: IdentityFolder) -> Identity:
    """Become a node of the deployment; what proves it is then in `folder`."""
    wanted = _checked_pin(pin)
    _refuse_if_taken(folder)
    check_writable(folder.path)  # before the token is spent
    authority = await _pinned_authority(host, port, wanted)
    ca_pem, key = to_pem(authority), make_key()
    request = {"ask": "enroll", "token": token, "csr": csr(key).decode("ascii")}
    answer = _accepted(await ask_desk(host, port, verified_by(ca_pem), request))
    cert_pem = text_of(answer, "cert").encode()
    certificate = certificate_from_pem(cert_pem, "The coordinator's answer")
    refused = refusal(certificate, authority, datetime.now(UTC))
    if refused is not None:
        raise refused
    if not same_key(certificate.public_key(), key.public_key()) or node_of(certificate).role != EDGE_ROLE:
        raise IdentityError(
            "mismatch", "The coordinator sent a certificate that is not for this edge. Ask its operator."
        )
    return folder.save(key, to_pem(certificate), ca_pem)


async def explain(host: str, port: int, folder: IdentityFolder) -> str | None:
    """Why the coordinator refuses this node's certificate, or None if it does not. The coordinator notes it, too."""
    identity = folder.read()
    request = {"ask": "explain", "cert": identity.cert_pem.decode("ascii")}
    try:
        answer = _accepted(await ask_desk(host, port, verified_by(identity.ca_pem), request))
    except IdentityError as error:
        if error.reason == "not-the-coordinator":  # a certificate is no secret: whoever it is may note who came
            with contextlib.suppress(IdentityError):
                await ask_desk(host, port, unverified(), request)
        raise
    return None if answer.get("reason") is None else text_of(answer, "reason")


async def tell_desk(host: str, port: int, word: str) -> None:
    """Let the coordinator note why this node turned away; nothing of it is a secret, and no answer is believed."""
    with contextlib.suppress(IdentityError):
        await ask_desk(host, port, unverified(), {"ask": "refuse", "word": word})


async def _pinned_authority(host: str, port: int, pin: str) -> x509.Certificate:
    answer = await ask_desk(host, port, unverified(), {"ask": "authority"})
    # Only the one certificate that is compared is used, whatever else the text holds.
    authority = certificate_from_pem(str(answer.get("ca")).encode("utf-8", "replace"), f"The answer of {host}:{port}")
    if not hmac.compare_digest(pin_of(authority), pin):
        await tell_desk(host, port, "wrong-pin")
        raise IdentityError(
            "wrong-pin",
            f"The authority at {host}:{port} is not the one of the pin {pin}. The token was not sent. "
            "Check address and pin; if both are right, somebody is in between.",
        )
    return authority


def _checked_pin(pin: str) -> str:
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
        f"{folder.path} already holds the identity of {present.node}, valid until {moment(present.expires)}. "
        "Start the edge with it, or choose another folder.",
    )


def _accepted(answer: dict[str, object]) -> dict[str, object]:
    if "error" in answer:
        sentence, word = answer["error"], answer.get("word")
        raise IdentityError(str(word or "refused"), f"The coordinator refused: {sentence}")
    return answer


def renewed(folder: IdentityFolder) -> bytes:
    """The request to send to the coordinator over a connection that the present certificate opened."""
    return csr(folder.read().key)


def accept_renewal(folder: IdentityFolder, cert_pem: bytes) -> Identity:
    """Put the coordinator's answer in place; one for another key, node or authority is refused and changes nothing."""
    return folder.replace_certificate(cert_pem)
