"""The private authority of a deployment: a key that signs certificates of a day.

There is no list of revoked certificates, since gRPC reads none. A certificate lives for a day instead, and the
coordinator's deny list locks a node out at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from hatdfed.deploy.identity.certificates import CLOCK_SKEW, certificate_from_pem, pin_of, refusal, to_pem
from hatdfed.deploy.identity.keys import Key, PublicKey, key_from_pem, key_pem, make_key, requested_key, same_key
from hatdfed.deploy.identity.names import Node
from hatdfed.deploy.identity.private_files import (
    PRIVATE,
    PUBLIC,
    make_private_folder,
    read_file,
    read_private,
    write_durably,
)
from hatdfed.errors import IdentityError

LIFETIME = timedelta(hours=24)
_OWN_LIFETIME = timedelta(days=3650)
_KEY, _CERTIFICATE = "ca-key.pem", "ca.pem"


@dataclass(frozen=True)
class Authority:
    """A key that signs, and the certificate by which everybody knows it."""

    folder: Path
    certificate: x509.Certificate
    _key: Key = field(repr=False)

    @property
    def pem(self) -> bytes:
        """The authority's certificate as text."""
        return to_pem(self.certificate)

    @property
    def pin(self) -> str:
        """The fingerprint that a new edge is given to recognise this authority by."""
        return pin_of(self.certificate)

    def sign(self, csr_pem: bytes, node: Node, lifetime: timedelta = LIFETIME) -> bytes:
        """A certificate for `node`. From the request comes the public key and nothing else."""
        key = requested_key(csr_pem)
        now = datetime.now(UTC)
        builder = _builder(node.name, key, now - CLOCK_SKEW, now + lifetime).issuer_name(self.certificate.subject)
        names = [x509.UniformResourceIdentifier(node.uri), x509.DNSName(node.dns)]
        both_ways = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        own = self.certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
        signed = (
            builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(both_ways), critical=False)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(own), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return to_pem(signed)

    def refusal(self, cert_pem: bytes, now: datetime) -> IdentityError | None:
        """Why a certificate is refused, or None if it is good."""
        try:
            certificate = certificate_from_pem(cert_pem, "What was sent")
        except IdentityError as error:
            return error
        return refusal(certificate, self.certificate, now)

    def verdict(self, cert_pem: bytes, now: datetime) -> str | None:
        """Why a certificate is refused, in a sentence, or None if it is good."""
        refused = self.refusal(cert_pem, now)
        return None if refused is None else str(refused)


def create_authority(folder: Path) -> Authority:
    """A new authority in a folder; one that already has one is refused."""
    for name in (_KEY, _CERTIFICATE):
        if (folder / name).exists():
            raise IdentityError(
                "exists",
                f"{folder / name} already exists, and an authority is never overwritten: all nodes know it by its pin. "
                "Choose another folder.",
            )
    make_private_folder(folder)
    key, now = make_key(), datetime.now(UTC)
    builder = _builder("hatdfed authority", key.public_key(), now - CLOCK_SKEW, now + _OWN_LIFETIME)
    certificate = (
        builder.issuer_name(_name("hatdfed authority"))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    write_durably(folder / _KEY, key_pem(key), PRIVATE)
    write_durably(folder / _CERTIFICATE, to_pem(certificate), PUBLIC)
    return Authority(folder, certificate, key)


def load_authority(folder: Path) -> Authority:
    """The authority that a folder holds."""
    remedy = f"Make an authority with `hatdfed ca init {folder}`, or check the path."
    certificate = certificate_from_pem(
        read_file(folder / _CERTIFICATE, "authority's certificate", remedy), str(folder / _CERTIFICATE)
    )
    key = key_from_pem(read_private(folder / _KEY, "authority's key", remedy), str(folder / _KEY))
    if not same_key(key.public_key(), certificate.public_key()):
        raise IdentityError(
            "mismatch", f"{_KEY} and {_CERTIFICATE} in {folder} do not belong together. Put the right files back."
        )
    return Authority(folder, certificate, key)


def _builder(name: str, key: PublicKey, begins: datetime, ends: datetime) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(ends)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
