"""The private certificate authority of a deployment.

There is no revocation list, since gRPC reads none. Certificates expire instead (after 30 days by default), and the
coordinator's deny list, which every call is checked against, locks a node out at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from hatdfed.deploy.identity.certificates import (
    CLOCK_SKEW,
    Key,
    PublicKey,
    certificate_from_pem,
    certificate_to_pem,
    check_certificate,
    compute_pin,
    format_time,
    is_same_key,
    key_from_pem,
    key_to_pem,
    make_key,
    public_key_from_csr,
)
from hatdfed.deploy.identity.names import VIEWER_ROLE, NodeId
from hatdfed.deploy.identity.private_files import (
    PRIVATE,
    PUBLIC,
    make_private_folder,
    read_file,
    read_private,
    write_durably,
)
from hatdfed.errors import IdentityError

LIFETIME = timedelta(days=30)  # a third of it is always left: a node may be off for more than a week
_OWN_LIFETIME = timedelta(days=3650)
_KEY, _CERTIFICATE = "ca-key.pem", "ca.pem"


@dataclass(frozen=True)
class Authority:
    """The key that signs, and the certificate by which all nodes know it."""

    folder: Path
    certificate: x509.Certificate
    _key: Key = field(repr=False)

    @property
    def pem(self) -> bytes:
        """The authority's certificate in PEM."""
        return certificate_to_pem(self.certificate)

    @property
    def pin(self) -> str:
        """The fingerprint by which a new edge recognises this authority."""
        return compute_pin(self.certificate)

    def sign(self, csr_pem: bytes, node: NodeId, lifetime: timedelta = LIFETIME) -> bytes:
        """Sign a certificate for `node`. Only the public key is taken from the request."""
        key = public_key_from_csr(csr_pem)
        now = datetime.now(UTC)
        self._check_clock(now)
        builder = _make_builder(node.name, key, now - CLOCK_SKEW, now + lifetime).issuer_name(self.certificate.subject)
        names = [x509.UniformResourceIdentifier(node.uri), x509.DNSName(node.dns)]
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
        if node.role != VIEWER_ROLE:
            usages.append(ExtendedKeyUsageOID.SERVER_AUTH)
        own = self.certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
        signed = (
            builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_make_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(own), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return certificate_to_pem(signed)

    def _check_clock(self, now: datetime) -> None:
        begins, ends = self.certificate.not_valid_before_utc, self.certificate.not_valid_after_utc
        if not begins <= now <= ends:
            raise IdentityError(
                "clock",
                f"This authority is valid from {format_time(begins)} to {format_time(ends)}, but it is "
                f"{format_time(now)} now. Set the clock.",
            )

    def check(self, cert_pem: bytes, now: datetime) -> IdentityError | None:
        """Return why a certificate is refused, or None if it is valid."""
        try:
            certificate = certificate_from_pem(cert_pem, "What was sent")
        except IdentityError as error:
            return error
        return check_certificate(certificate, self.certificate, now)


def create_authority(folder: Path) -> Authority:
    """Make a new authority in a folder; a folder that already has one is refused."""
    for name in (_KEY, _CERTIFICATE):
        if (folder / name).exists():
            raise IdentityError(
                "exists",
                f"{folder / name} already exists, and an authority is never overwritten: all nodes know it by its pin. "
                "Choose another folder.",
            )
    make_private_folder(folder)
    key, now = make_key(), datetime.now(UTC)
    builder = _make_builder("hatdfed authority", key.public_key(), now - CLOCK_SKEW, now + _OWN_LIFETIME)
    certificate = (
        builder.issuer_name(_make_name("hatdfed authority"))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_make_usage(signs_certificates=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    write_durably(folder / _KEY, key_to_pem(key), PRIVATE)
    write_durably(folder / _CERTIFICATE, certificate_to_pem(certificate), PUBLIC)
    return Authority(folder, certificate, key)


def load_authority(folder: Path) -> Authority:
    """Load the authority from its folder."""
    remedy = f"Make an authority with `hatdfed ca init {folder}`, or check the path."
    certificate = certificate_from_pem(
        read_file(folder / _CERTIFICATE, "authority's certificate", remedy), str(folder / _CERTIFICATE)
    )
    key = key_from_pem(read_private(folder / _KEY, "authority's key", remedy), str(folder / _KEY))
    if not is_same_key(key.public_key(), certificate.public_key()):
        raise IdentityError(
            "mismatch", f"{_KEY} and {_CERTIFICATE} in {folder} do not belong together. Put the right files back."
        )
    return Authority(folder, certificate, key)


def _make_builder(name: str, key: PublicKey, begins: datetime, ends: datetime) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(_make_name(name))
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(ends)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _make_name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _make_usage(*, signs_certificates: bool) -> x509.KeyUsage:
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
