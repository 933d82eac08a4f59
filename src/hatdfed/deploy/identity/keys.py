"""A node's private key, and the request to have its public half signed."""

from __future__ import annotations

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from hatdfed.errors import IdentityError

Key = ec.EllipticCurvePrivateKey
PublicKey = ec.EllipticCurvePublicKey


def make_key() -> Key:
    """A fresh key on the curve P-256, which every TLS library knows."""
    return ec.generate_private_key(ec.SECP256R1())


def key_pem(key: Key) -> bytes:
    """The private key as text; it is for a file of mode 0600 and for nothing else."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def key_from_pem(pem: bytes, where: str) -> Key:
    """The private key in a file; `where` is the file, for the error sentence."""
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        # The library's own words are left out: they may quote the file.
        raise IdentityError(
            "bad-key", f"{where} holds no private key that can be read. Put the right file back."
        ) from None
    if not isinstance(key, Key) or not isinstance(key.curve, ec.SECP256R1):
        raise IdentityError("bad-key", f"{where} holds a key of another kind. Wanted: an EC key on the curve P-256.")
    return key


def csr(key: Key) -> bytes:
    """A signing request. It names nobody: the authority knows from the token or the old certificate who asks."""
    return (
        x509.CertificateSigningRequestBuilder()
        .subject_name(x509.Name([]))
        .sign(key, hashes.SHA256())
        .public_bytes(serialization.Encoding.PEM)
    )


def requested_key(csr_pem: bytes) -> PublicKey:
    """The public key of a signing request; all else that it says is ignored."""
    try:
        request = x509.load_pem_x509_csr(csr_pem)
        is_signed, key = request.is_signature_valid, request.public_key()
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise IdentityError(
            "bad-request", "The signing request cannot be read. Wanted: a PKCS #10 request in PEM."
        ) from None
    if not isinstance(key, PublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise IdentityError("bad-request", "The signing request has a key of another kind. Wanted: EC on P-256.")
    if not is_signed:
        raise IdentityError("bad-request", "The signing request is not signed by its own key. Make it again.")
    return key


def same_key(one: object, other: object) -> bool:
    """Whether two public keys are one."""
    return isinstance(one, PublicKey) and isinstance(other, PublicKey) and one == other
