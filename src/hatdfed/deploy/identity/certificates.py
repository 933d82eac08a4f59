"""What a certificate says, and why one is refused."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding

from hatdfed.deploy.identity.names import Node, node_from_uri
from hatdfed.errors import IdentityError

# Certificates begin this long before they are made: a node whose clock is hours behind still accepts them.
CLOCK_SKEW = timedelta(hours=4)


def certificate_from_pem(pem: bytes, what: str) -> x509.Certificate:
    """The first certificate in a text; `what` names it in the error sentence."""
    try:
        certificate = x509.load_pem_x509_certificate(pem)
        certificate.public_key()
        _ = certificate.extensions
    except (ValueError, TypeError, UnsupportedAlgorithm, x509.DuplicateExtension):
        raise IdentityError("bad-certificate", f"{what} holds no certificate that can be read.") from None
    return certificate


def to_pem(certificate: x509.Certificate) -> bytes:
    """The certificate as text, and nothing but it."""
    return certificate.public_bytes(Encoding.PEM)


def pin_of(certificate: x509.Certificate) -> str:
    """The fingerprint by which an operator names an authority."""
    return f"sha256:{hashlib.sha256(certificate.public_bytes(Encoding.DER)).hexdigest()}"


def node_of(certificate: x509.Certificate) -> Node:
    """The one node that a certificate names."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    except x509.ExtensionNotFound:
        uris = []
    if len(uris) != 1:
        raise IdentityError("no-node-name", f"The certificate names {len(uris)} nodes, but must name exactly one.")
    return node_from_uri(uris[0])


def is_signed_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    """Whether the authority's key made this certificate."""
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


def refusal(certificate: x509.Certificate, authority: x509.Certificate, now: datetime) -> IdentityError | None:
    """Why a certificate is refused, or None if it is good. What strangers wrote into theirs is not quoted."""
    if not is_signed_by(certificate, authority):
        return IdentityError(
            "foreign", "The certificate was not signed by this deployment's authority. Join with a token of this one."
        )
    try:
        node = node_of(certificate)
    except IdentityError as error:
        return error
    if now > certificate.not_valid_after_utc:
        ended = moment(certificate.not_valid_after_utc)
        return IdentityError(
            "expired",
            f"The certificate of {node} expired at {ended}, and it is {moment(now)} now. Join again with a new token.",
        )
    if now < certificate.not_valid_before_utc:
        begins = moment(certificate.not_valid_before_utc)
        return IdentityError(
            "too-early",
            f"The certificate of {node} is not valid before {begins}, and it is {moment(now)} now. Set the clock.",
        )
    return None


def issued_at(certificate: x509.Certificate) -> datetime:
    """When a certificate of our authority was made."""
    return certificate.not_valid_before_utc + CLOCK_SKEW


def moment(when: datetime) -> str:
    """A time as sentences say it.

    >>> moment(datetime(2026, 3, 1, 12, 30, tzinfo=UTC))
    '2026-03-01 12:30:00 UTC'
    """
    return f"{when.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
