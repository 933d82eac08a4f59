"""All that a coordinator keeps about identities, in one folder.

ca-key.pem, ca.pem    the authority
tokens.sqlite         join tokens, hashed
denied.txt            nodes that are locked out
coordinator/          the coordinator's own identity
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from hatdfed.deploy.identity.authority import LIFETIME, Authority, create_authority, load_authority
from hatdfed.deploy.identity.certificates import certificate_from_pem, node_of
from hatdfed.deploy.identity.deny import DenyList
from hatdfed.deploy.identity.files import IdentityFolder
from hatdfed.deploy.identity.keys import csr, make_key, requested_key
from hatdfed.deploy.identity.names import COORDINATOR, Node, edge
from hatdfed.deploy.identity.tokens import TokenStore
from hatdfed.errors import IdentityError


class Enrolled(NamedTuple):
    """A node that was let in, and its certificate."""

    node: Node
    cert_pem: bytes


@dataclass(frozen=True)
class IdentityStore:
    """Authority, tokens, deny list and the coordinator's own identity."""

    authority: Authority
    tokens: TokenStore
    denied: DenyList
    identity: IdentityFolder
    lifetime: timedelta = LIFETIME

    def enroll(self, token: str, csr_pem: bytes) -> Enrolled:
        """The certificate of a new edge; its name is the token's."""
        requested_key(csr_pem)  # a request that cannot be signed must not use the token up
        node = edge(self.tokens.redeem(token))
        self.denied.check(node.name)
        return Enrolled(node, self.authority.sign(csr_pem, node, self.lifetime))

    def renew(self, node: Node, csr_pem: bytes) -> bytes:
        """A new certificate for a node that has proved who it is with its old one."""
        self.denied.check(node.name)
        return self.authority.sign(csr_pem, node, self.lifetime)

    def refusal(self, cert_pem: bytes, now: datetime | None = None) -> IdentityError | None:
        """Why the bearer of a certificate is not let in, or None if it is."""
        refused = self.authority.refusal(cert_pem, now or datetime.now(UTC))
        if refused is not None:
            return refused
        try:
            self.denied.check(node_of(certificate_from_pem(cert_pem, "What was sent")).name)
        except IdentityError as error:
            return error
        return None

    def refresh(self, now: datetime | None = None) -> IdentityFolder:
        """The coordinator's identity, renewed if it is time: it needs nobody else for that, even after a long rest."""
        try:
            identity = self.identity.read()
        except IdentityError as error:
            if error.reason != "missing":
                raise
            key = make_key()
            self.identity.save(key, self.authority.sign(csr(key), COORDINATOR, self.lifetime), self.authority.pem)
            return self.identity
        if identity.should_renew(now or datetime.now(UTC)):
            self.identity.replace_certificate(self.authority.sign(csr(identity.key), COORDINATOR, self.lifetime))
        return self.identity


def create_identity_store(folder: Path, lifetime: timedelta = LIFETIME) -> IdentityStore:
    """A new authority and the coordinator's identity."""
    office = _office(create_authority(folder), lifetime)
    office.refresh()
    return office


def open_identity_store(folder: Path, lifetime: timedelta = LIFETIME) -> IdentityStore:
    """What a folder made by `create_identity_store` holds. Call `refresh` before the coordinator's identity is used."""
    return _office(load_authority(folder), lifetime)


def _office(authority: Authority, lifetime: timedelta) -> IdentityStore:
    folder = authority.folder
    return IdentityStore(
        authority,
        TokenStore(folder / "tokens.sqlite"),
        DenyList(folder / "denied.txt"),
        IdentityFolder(folder / "coordinator"),
        lifetime,
    )
