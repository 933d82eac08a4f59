"""Proof that a node has the key of its certificate, where TLS would refuse the certificate because it has expired.

The join server sends a challenge that it uses once, and the node signs it together with its request. The signed text
begins with words of its own, so that the signature is of no use anywhere else.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import secrets

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from hatdfed.deploy.identity.certificates import Key, PublicKey, compute_pin, is_same_key, public_key_from_csr
from hatdfed.errors import IdentityError

_PURPOSE = "hatdfed renewal 1"
_ALGORITHM = ec.ECDSA(hashes.SHA256())


def make_challenge() -> str:
    """Draw a challenge; each is for one connection."""
    return secrets.token_hex(32)


def prove(key: Key, challenge: str, csr_pem: bytes, authority: x509.Certificate) -> str:
    """Sign a challenge and the request that it is for."""
    return base64.b64encode(key.sign(_make_text(challenge, csr_pem, authority), _ALGORITHM)).decode("ascii")


def check_proof(
    certificate: x509.Certificate, challenge: str, csr_pem: bytes, proof: str, authority: x509.Certificate
) -> None:
    """Raise `IdentityError` unless the holder of the certificate's key has signed this challenge and this request."""
    key = certificate.public_key()
    if not isinstance(key, PublicKey) or not is_same_key(key, public_key_from_csr(csr_pem)):
        raise IdentityError("bad-proof", "The signing request is for another key than the certificate.")
    try:
        signature = base64.b64decode(proof.encode("ascii", "replace"), validate=True)
        key.verify(signature, _make_text(challenge, csr_pem, authority), _ALGORITHM)
    except (InvalidSignature, binascii.Error):
        raise IdentityError("bad-proof", "The caller has not proved that it has the certificate's key.") from None


def _make_text(challenge: str, csr_pem: bytes, authority: x509.Certificate) -> bytes:
    digest = hashlib.sha256(csr_pem).hexdigest()
    return "\n".join((_PURPOSE, challenge, compute_pin(authority), digest)).encode("utf-8", "replace")
