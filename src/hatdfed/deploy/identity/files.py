"""The folder in which a node keeps its identity.

key.pem     the private key, made here, mode 0600
ca.pem      the certificate of the deployment's authority
cert.pem    the node's certificate; it is written last, so a folder that has one is complete
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509

from hatdfed.deploy.identity.certificates import (
    Key,
    certificate_from_pem,
    certificate_to_pem,
    check_certificate,
    is_same_key,
    key_from_pem,
    key_to_pem,
    node_from_certificate,
    renewal_time,
)
from hatdfed.deploy.identity.names import NodeId
from hatdfed.deploy.identity.private_files import (
    PRIVATE,
    PUBLIC,
    make_private_folder,
    read_file,
    read_private,
    sync_folder,
    write_durably,
)
from hatdfed.errors import IdentityError

_REMEDY = "Join with `hatdfed edge join`, or check the path."


@dataclass(frozen=True)
class Identity:
    """A node's name with the key and certificate that prove it."""

    node: NodeId
    key: Key = field(repr=False)
    certificate: x509.Certificate
    authority: x509.Certificate

    @property
    def key_pem(self) -> bytes:
        """The private key in PEM."""
        return key_to_pem(self.key)

    @property
    def cert_pem(self) -> bytes:
        """The certificate in PEM."""
        return certificate_to_pem(self.certificate)

    @property
    def ca_pem(self) -> bytes:
        """The authority's certificate in PEM."""
        return certificate_to_pem(self.authority)

    @property
    def expires(self) -> datetime:
        """When the certificate expires."""
        return self.certificate.not_valid_after_utc

    def should_renew(self, now: datetime) -> bool:
        """Return whether it is time to renew the certificate."""
        return now >= renewal_time(self.certificate)


@dataclass(frozen=True)
class IdentityFolder:
    """Reads and writes one node's identity."""

    path: Path

    @property
    def key_file(self) -> Path:
        """Path of the private key."""
        return self.path / "key.pem"

    @property
    def cert_file(self) -> Path:
        """Path of the certificate."""
        return self.path / "cert.pem"

    @property
    def ca_file(self) -> Path:
        """Path of the authority's certificate."""
        return self.path / "ca.pem"

    @property
    def stamp(self) -> tuple[int, int]:
        """A value that changes whenever the certificate file does; zeros where there is none."""
        try:
            status = self.cert_file.stat()
        except FileNotFoundError:
            return 0, 0
        return status.st_mtime_ns, status.st_ino

    @property
    def expires(self) -> datetime:
        """When the certificate expires, or has expired."""
        return self.read().expires

    def should_renew(self, now: datetime) -> bool:
        """Return whether it is time to renew the certificate."""
        return self.read().should_renew(now)

    def load(self, now: datetime | None = None) -> Identity:
        """Read the identity and check that its certificate is valid now."""
        identity = self.read()
        refused = check_certificate(identity.certificate, identity.authority, now or datetime.now(UTC))
        if refused is not None:
            raise IdentityError(refused.reason, f"The identity in {self.path} is no good: {refused}")
        return identity

    def find_refusal(self) -> IdentityError | None:
        """Return why the identity is of no use now, or None if it is valid."""
        try:
            self.load()
        except IdentityError as error:
            return error
        return None

    def read(self) -> Identity:
        """Read the identity, whether or not its certificate is still valid."""
        certificate = self._read_certificate(self.cert_file, "certificate")
        authority = self._read_certificate(self.ca_file, "authority's certificate")
        key = key_from_pem(read_private(self.key_file, "private key", _REMEDY), str(self.key_file))
        if not is_same_key(key.public_key(), certificate.public_key()):
            raise IdentityError(
                "mismatch", f"key.pem and cert.pem in {self.path} do not belong together. Join again with a new token."
            )
        return Identity(node_from_certificate(certificate), key, certificate, authority)

    def save(self, key: Key, cert_pem: bytes, ca_pem: bytes) -> Identity:
        """Write all three files. After a crash the folder holds the whole identity or, without cert.pem, none."""
        make_private_folder(self.path)
        try:
            self.cert_file.unlink(missing_ok=True)
            sync_folder(self.path)
        except OSError as error:
            raise IdentityError(
                "disk", f"{self.cert_file} cannot be replaced ({error.strerror}). Choose another folder."
            ) from None
        write_durably(self.key_file, key_to_pem(key), PRIVATE)
        write_durably(self.ca_file, ca_pem, PUBLIC)
        write_durably(self.cert_file, cert_pem, PUBLIC)
        return self.read()

    def replace_certificate(self, pem: bytes) -> Identity:
        """Replace the certificate atomically by a newer one for the same key and node; any other is refused."""
        old = self.read()
        new = certificate_from_pem(pem, "The renewal")
        if not is_same_key(old.key.public_key(), new.public_key()):
            raise IdentityError("mismatch", f"The renewed certificate is for another key than {self.key_file}.")
        refused = check_certificate(new, old.authority, datetime.now(UTC))
        if refused is not None:
            raise refused
        if node_from_certificate(new) != old.node:
            raise IdentityError(
                "mismatch", f"The renewed certificate is for {node_from_certificate(new)}, but this is {old.node}."
            )
        write_durably(self.cert_file, certificate_to_pem(new), PUBLIC)
        return self.read()

    def _read_certificate(self, path: Path, what: str) -> x509.Certificate:
        return certificate_from_pem(read_file(path, what, _REMEDY), str(path))
