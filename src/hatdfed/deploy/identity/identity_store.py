"""Everything that a coordinator stores about identities, in one folder.

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
from hatdfed.deploy.identity.certificates import (
    certificate_from_pem,
    make_csr,
    make_key,
    node_from_certificate,
    public_key_from_csr,
)
from hatdfed.deploy.identity.deny import DenyList
from hatdfed.deploy.identity.files import IdentityFolder
from hatdfed.deploy.identity.names import COORDINATOR, NodeId, edge_id
from hatdfed.deploy.identity.tokens import TokenStore
from hatdfed.errors import IdentityError


class Enrolled(NamedTuple):
    """A node that has joined, and its certificate."""

    node: NodeId
    cert_pem: bytes


@dataclass(frozen=True)
class IdentityStore:
    """The authority, the join tokens, the deny list and the coordinator's own identity."""

    authority: Authority
    tokens: TokenStore
    deny_list: DenyList
    identity: IdentityFolder
    lifetime: timedelta = LIFETIME

    def enroll(self, token: str, csr_pem: bytes) -> Enrolled:
        """Redeem a token and sign a certificate for the edge that the token names."""
        public_key_from_csr(csr_pem)  # raises first: a request that cannot be signed must not use the token up
        node = edge_id(self.tokens.redeem(token))
        self.deny_list.check(node.name)
        return Enrolled(node, self.authority.sign(csr_pem, node, self.lifetime))

    def renew(self, node: NodeId, csr_pem: bytes) -> bytes:
        """Sign a new certificate for a node that has authenticated itself with its old one."""
        self.deny_list.check(node.name)
        return self.authority.sign(csr_pem, node, self.lifetime)

    def check_certificate(self, cert_pem: bytes, now: datetime | None = None) -> IdentityError | None:
        """Return why the holder of a certificate is refused, or None if it is not."""
        refused = self.authority.check(cert_pem, now or datetime.now(UTC))
        if refused is not None:
            return refused
        try:
            self.deny_list.check(node_from_certificate(certificate_from_pem(cert_pem, "What was sent")).name)
        except IdentityError as error:
            return error
        return None

    def refresh(self, now: datetime | None = None) -> IdentityFolder:
        """Return the coordinator's identity, made or renewed first if needed: it can always sign its own."""
        try:
            identity = self.identity.read()
        except IdentityError as error:
            if error.reason != "missing":
                raise
            key = make_key()
            self.identity.save(key, self.authority.sign(make_csr(key), COORDINATOR, self.lifetime), self.authority.pem)
            return self.identity
        if identity.should_renew(now or datetime.now(UTC)):
            self.identity.replace_certificate(self.authority.sign(make_csr(identity.key), COORDINATOR, self.lifetime))
        return self.identity


def create_identity_store(folder: Path, lifetime: timedelta = LIFETIME) -> IdentityStore:
    """Create a new authority and the coordinator's identity."""
    store = _assemble(create_authority(folder), lifetime)
    store.refresh()
    return store


def open_identity_store(folder: Path, lifetime: timedelta = LIFETIME) -> IdentityStore:
    """Open a folder made by `create_identity_store`. Call `refresh` before using the coordinator's identity."""
    return _assemble(load_authority(folder), lifetime)


def _assemble(authority: Authority, lifetime: timedelta) -> IdentityStore:
    folder = authority.folder
    return IdentityStore(
        authority,
        TokenStore(folder / "tokens.sqlite"),
        DenyList(folder / "denied.txt"),
        IdentityFolder(folder / "coordinator"),
        lifetime,
    )
