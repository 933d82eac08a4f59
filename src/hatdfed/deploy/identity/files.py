"""The folder in which a node keeps who it is.

key.pem     the private key, made here, mode 0600
ca.pem      the authority that everybody here trusts
cert.pem    the certificate; it is written last, so a folder that has one is complete
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509

from hatdfed.deploy.identity.certificates import certificate_from_pem, issued_at, node_of, refusal, to_pem
from hatdfed.deploy.identity.keys import Key, key_from_pem, key_pem, same_key
from hatdfed.deploy.identity.names import Node
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
    """Who a node is, and its proof."""

    node: Node
    key: Key = field(repr=False)
    certificate: x509.Certificate
    authority: x509.Certificate

    @property
    def key_pem(self) -> bytes:
        """The private key as TLS libraries want it."""
        return key_pem(self.key)

    @property
    def cert_pem(self) -> bytes:
        """The certificate as text."""
        return to_pem(self.certificate)

    @property
    def ca_pem(self) -> bytes:
        """The authority's certificate as text."""
        return to_pem(self.authority)

    @property
    def expires(self) -> datetime:
        """When the certificate ends."""
        return self.certificate.not_valid_after_utc

    def should_renew(self, now: datetime) -> bool:
        """Whether two thirds of the certificate's life are over: a third is left for retries."""
        issued = issued_at(self.certificate)
        return now >= issued + (self.expires - issued) * 2 / 3


@dataclass(frozen=True)
class IdentityFolder:
    """The paths of one node's identity, and how it is read and written."""

    path: Path

    @property
    def key_file(self) -> Path:
        """The private key."""
        return self.path / "key.pem"

    @property
    def cert_file(self) -> Path:
        """The certificate."""
        return self.path / "cert.pem"

    @property
    def ca_file(self) -> Path:
        """The authority's certificate."""
        return self.path / "ca.pem"

    @property
    def stamp(self) -> tuple[int, int]:
        """Changes when the certificate does; zeros where there is none."""
        try:
            status = self.cert_file.stat()
        except FileNotFoundError:
            return 0, 0
        return status.st_mtime_ns, status.st_ino

    @property
    def expires(self) -> datetime:
        """When the certificate ends, be it over or not."""
        return self.read().expires

    def should_renew(self, now: datetime) -> bool:
        """Whether it is time for a new certificate."""
        return self.read().should_renew(now)

    def load(self, now: datetime | None = None) -> Identity:
        """The identity, if it is good now; otherwise a sentence says why not."""
        identity = self.read()
        refused = refusal(identity.certificate, identity.authority, now or datetime.now(UTC))
        if refused is not None:
            raise IdentityError(refused.reason, f"The identity in {self.path} is no good: {refused}")
        return identity

    def read(self) -> Identity:
        """The identity, be its certificate still valid or not."""
        certificate = self._certificate(self.cert_file, "certificate")
        authority = self._certificate(self.ca_file, "authority's certificate")
        key = key_from_pem(read_private(self.key_file, "private key", _REMEDY), str(self.key_file))
        if not same_key(key.public_key(), certificate.public_key()):
            raise IdentityError(
                "mismatch", f"key.pem and cert.pem in {self.path} do not belong together. Join again with a new token."
            )
        return Identity(node_of(certificate), key, certificate, authority)

    def save(self, key: Key, cert_pem: bytes, ca_pem: bytes) -> Identity:
        """Write all three. After a crash the folder holds the whole identity or, without cert.pem, none."""
        make_private_folder(self.path)
        try:
            self.cert_file.unlink(missing_ok=True)
            sync_folder(self.path)
        except OSError as error:
            raise IdentityError(
                "disk", f"{self.cert_file} cannot be replaced ({error.strerror}). Choose another folder."
            ) from None
        write_durably(self.key_file, key_pem(key), PRIVATE)
        write_durably(self.ca_file, ca_pem, PUBLIC)
        write_durably(self.cert_file, cert_pem, PUBLIC)
        return self.read()

    def replace_certificate(self, pem: bytes) -> Identity:
        """Put a newer certificate for the same key and node in place, in one step; a wrong one changes nothing."""
        old = self.read()
        new = certificate_from_pem(pem, "The renewal")
        if not same_key(old.key.public_key(), new.public_key()):
            raise IdentityError("mismatch", f"The renewed certificate is for another key than {self.key_file}.")
        refused = refusal(new, old.authority, datetime.now(UTC))
        if refused is not None:
            raise refused
        if node_of(new) != old.node:
            raise IdentityError("mismatch", f"The renewed certificate is for {node_of(new)}, but this is {old.node}.")
        write_durably(self.cert_file, to_pem(new), PUBLIC)
        return self.read()

    def _certificate(self, path: Path, what: str) -> x509.Certificate:
        return certificate_from_pem(read_file(path, what, _REMEDY), str(path))
