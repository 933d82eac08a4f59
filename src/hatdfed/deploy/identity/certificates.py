"""Keys, signing requests and certificates: make them, read them, and say why a certificate is refused."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from hatdfed.deploy.identity.names import COORDINATOR_ROLE, NodeId, node_from_uri
from hatdfed.errors import IdentityError

Key = ec.EllipticCurvePrivateKey
PublicKey = ec.EllipticCurvePublicKey

# Certificates are backdated by this much, so that a node whose clock is hours behind still accepts them.
CLOCK_SKEW = timedelta(hours=4)


def make_key() -> Key:
    """Generate a private key on the curve P-256, which every TLS library supports."""
    return ec.generate_private_key(ec.SECP256R1())


def key_to_pem(key: Key) -> bytes:
    """Encode a private key, unencrypted. The result belongs in a file of mode 0600 and nowhere else."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def key_from_pem(pem: bytes, where: str) -> Key:
    """Decode a private key; `where` names its file in error messages."""
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        # The library's own message is left out: it may quote the file.
        raise IdentityError(
            "bad-key", f"{where} holds no private key that can be read. Put the right file back."
        ) from None
    if not isinstance(key, Key) or not isinstance(key.curve, ec.SECP256R1):
        raise IdentityError("bad-key", f"{where} holds a key of another kind. Wanted: an EC key on the curve P-256.")
    return key


def is_same_key(one: object, other: object) -> bool:
    """Return whether two public keys are equal."""
    return isinstance(one, PublicKey) and isinstance(other, PublicKey) and one == other


def make_csr(key: Key) -> bytes:
    """Make a signing request (PEM). Its subject is empty: the token or the old certificate tells who asks."""
    return (
        x509.CertificateSigningRequestBuilder()
        .subject_name(x509.Name([]))
        .sign(key, hashes.SHA256())
        .public_bytes(serialization.Encoding.PEM)
    )


def public_key_from_csr(csr_pem: bytes) -> PublicKey:
    """Read the public key of a signing request, which must be signed by that key; its other fields are ignored."""
    try:
        request = x509.load_pem_x509_csr(csr_pem)
        is_signed, key = request.is_signature_valid, request.public_key()
    except (ValueError, TypeError, UnsupportedAlgorithm, x509.InvalidVersion):
        raise IdentityError(
            "bad-request", "The signing request cannot be read. Wanted: a PKCS #10 request in PEM."
        ) from None
    if not isinstance(key, PublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise IdentityError("bad-request", "The signing request has a key of another kind. Wanted: EC on P-256.")
    if not is_signed:
        raise IdentityError("bad-request", "The signing request is not signed by its own key. Make it again.")
    return key


def certificate_from_pem(pem: bytes, what: str) -> x509.Certificate:
    """Decode the first certificate in a text; `what` names it in error messages."""
    try:
        certificate = x509.load_pem_x509_certificate(pem)
        certificate.public_key()
        _ = certificate.extensions
    except (ValueError, TypeError, UnsupportedAlgorithm, x509.DuplicateExtension, x509.InvalidVersion):
        raise IdentityError("bad-certificate", f"{what} holds no certificate that can be read.") from None
    return certificate


def certificate_to_pem(certificate: x509.Certificate) -> bytes:
    """Encode one certificate, without anything else that its file may have held."""
    return certificate.public_bytes(serialization.Encoding.PEM)


def compute_pin(certificate: x509.Certificate) -> str:
    """Compute the fingerprint by which operators identify an authority."""
    return f"sha256:{hashlib.sha256(certificate.public_bytes(serialization.Encoding.DER)).hexdigest()}"


def node_from_certificate(certificate: x509.Certificate) -> NodeId:
    """Read the one node that a certificate names."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    except x509.ExtensionNotFound:
        uris = []
    if len(uris) != 1:
        raise IdentityError("no-node-name", f"The certificate names {len(uris)} nodes, but must name exactly one.")
    return node_from_uri(uris[0])


def is_signed_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    """Return whether the authority's key signed this certificate."""
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


def check_certificate(
    certificate: x509.Certificate, authority: x509.Certificate, now: datetime
) -> IdentityError | None:
    """Return why a certificate is refused, or None if it is valid.

    The message never quotes the content of a certificate that another authority signed.
    """
    if not is_signed_by(certificate, authority):
        return IdentityError(
            "foreign", "The certificate was not signed by this deployment's authority. Join with a token of this one."
        )
    try:
        node = node_from_certificate(certificate)
    except IdentityError as error:
        return error
    if now > certificate.not_valid_after_utc:
        ended = format_time(certificate.not_valid_after_utc)
        return IdentityError(
            "expired",
            f"The certificate of {node} expired at {ended}, and it is {format_time(now)} now. {_describe_remedy(node)}",
        )
    if now < certificate.not_valid_before_utc:
        begins = format_time(certificate.not_valid_before_utc)
        return IdentityError(
            "too-early",
            f"The certificate of {node} is not valid before {begins}, and it is {format_time(now)} now. Set the clock.",
        )
    return None


def check_renewable(
    certificate: x509.Certificate, authority: x509.Certificate, now: datetime, grace: timedelta
) -> IdentityError | None:
    """Return why a certificate cannot be renewed by proof of its key, or None if it can.

    It may have expired, but no longer ago than `grace`. It may also lie in the future: then it was signed while the
    coordinator's clock was wrong.
    """
    refused = check_certificate(certificate, authority, now)
    if refused is None or refused.reason == "too-early":
        return None
    if refused.reason == "expired" and now <= certificate.not_valid_after_utc + grace:
        return None
    return refused


def _describe_remedy(node: NodeId) -> str:
    if node.role == COORDINATOR_ROLE:
        return "Check the clock; a coordinator renews its certificate when it starts and while it runs."
    return "If it cannot be renewed, join again with a new token."


def issued_at(certificate: x509.Certificate) -> datetime:
    """Return when our authority issued a certificate, without the backdating."""
    return certificate.not_valid_before_utc + CLOCK_SKEW


def renewal_time(certificate: x509.Certificate) -> datetime:
    """Return when two thirds of a certificate's lifetime are over, which leaves a third for retries of its renewal."""
    issued = issued_at(certificate)
    return issued + (certificate.not_valid_after_utc - issued) * 2 / 3


def format_time(when: datetime) -> str:
    """Format a time for log lines and error messages.

    >>> format_time(datetime(2026, 3, 1, 12, 30, tzinfo=UTC))
    '2026-03-01 12:30:00 UTC'
    """
    return f"{when.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
