"""How a node renews its certificate: over a connection made with it, or at the join server once it has expired."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from hatdfed.deploy.identity.certificates import make_csr
from hatdfed.deploy.identity.files import Identity, IdentityFolder
from hatdfed.deploy.identity.join import ask_join_server, make_verified_context, raise_if_refused, read_text
from hatdfed.deploy.identity.proofs import prove
from hatdfed.errors import IdentityError


def make_renewal_request(folder: IdentityFolder) -> bytes:
    """Make the signing request to send to the coordinator, over a connection made with the present certificate."""
    return make_csr(folder.read().key)


def accept_renewal(folder: IdentityFolder, cert_pem: bytes) -> Identity:
    """Store a renewed certificate; one for another key, node or authority is refused and changes nothing."""
    return folder.replace_certificate(cert_pem)


async def renew_by_proof(host: str, port: int, folder: IdentityFolder) -> Identity:
    """Renew a certificate at the join server, which takes an expired one for a while, by proof of its key."""
    identity = folder.read()
    csr = make_csr(identity.key)

    def answer_challenge(asked: Mapping[str, Any]) -> dict[str, str]:
        return {"proof": prove(identity.key, read_text(asked, "challenge"), csr, identity.authority)}

    request = {"ask": "renew", "cert": identity.cert_pem.decode("ascii"), "csr": csr.decode("ascii")}
    context = make_verified_context(identity.ca_pem)
    answer = await ask_join_server(host, port, context, request, answer_challenge)
    raise_if_refused(answer)
    return folder.replace_certificate(read_text(answer, "cert").encode("utf-8", "replace"))


async def renew_if_due(host: str, port: int, folder: IdentityFolder) -> None:
    """Renew a certificate in time; a renewal that fails is an error only if the certificate is not valid any more."""
    if not folder.should_renew(datetime.now(UTC)):
        return
    try:
        await renew_by_proof(host, port, folder)
    except IdentityError as error:
        if (refused := folder.find_refusal()) is not None:
            raise IdentityError(refused.reason, f"{refused} It could not be renewed: {error}") from None
