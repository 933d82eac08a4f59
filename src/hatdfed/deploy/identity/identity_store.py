"""Everything that a coordinator stores about identities, in one folder.

ca-key.pem, ca.pem    the authority
tokens.sqlite         join tokens, hashed
issued.sqlite         which certificates were issued to which keys
denied.txt            nodes that are locked out
coordinator/          the coordinator's own identity
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from hatdfed.deploy.identity.authority import LIFETIME, Authority, create_authority, load_authority
from hatdfed.deploy.identity.certificates import (
    certificate_from_pem,
    check_renewable,
    format_time,
    make_csr,
    make_key,
    node_from_certificate,
    public_key_from_csr,
)
from hatdfed.deploy.identity.deny import DenyList
from hatdfed.deploy.identity.files import IdentityFolder
from hatdfed.deploy.identity.issued import IssuedCertificates
from hatdfed.deploy.identity.names import COORDINATOR, EDGE_ROLE, VIEWER_ROLE, NodeId
from hatdfed.deploy.identity.proofs import check_proof
from hatdfed.deploy.identity.tokens import TokenStore
from hatdfed.errors import IdentityError

GRACE = timedelta(days=30)
_JOINING_ROLES = (EDGE_ROLE, VIEWER_ROLE)
_log = logging.getLogger("hatdfed.deploy.identity")


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
    grace: timedelta = GRACE  # after which an expired certificate is not renewed

    @property
    def issued(self) -> IssuedCertificates:
        """The record of issued certificates."""
        return IssuedCertificates(self.authority.folder / "issued.sqlite")

    def enroll(self, token: str, csr_pem: bytes, role: str = EDGE_ROLE) -> Enrolled:
        """Redeem a token and sign a certificate for the node that the token names."""
        public_key_from_csr(csr_pem)  # raises first: a request that cannot be signed must not use the token up
        if role not in _JOINING_ROLES:
            raise IdentityError("wrong-role", f"Nobody joins as {role!r:.40}; a node is an edge or a viewer.")
        node = NodeId(role, self.tokens.redeem(token, role=role))
        return Enrolled(node, self.renew(node, csr_pem))

    def renew(self, node: NodeId, csr_pem: bytes) -> bytes:
        """Sign a new certificate for a node that has authenticated itself with its old one."""
        self.deny_list.check(node.name)
        cert_pem = self.authority.sign(csr_pem, node, self.lifetime)
        self.issued.record(certificate_from_pem(cert_pem, "Our own signature"))
        return cert_pem

    def renew_by_proof(
        self, cert_pem: bytes, csr_pem: bytes, challenge: str, proof: str, now: datetime | None = None
    ) -> Enrolled:
        """Sign a new certificate for a node whose old one may have expired, by proof that it has the old one's key."""
        certificate, own = certificate_from_pem(cert_pem, "What was sent"), self.authority.certificate
        refused = check_renewable(certificate, own, now or datetime.now(UTC), self.grace)
        if refused is not None:
            raise refused
        node = node_from_certificate(certificate)
        if node.role not in _JOINING_ROLES:
            raise IdentityError("wrong-role", f"{node} does not renew its certificate here.")
        check_proof(certificate, challenge, csr_pem, proof, own)
        self.issued.check(certificate)
        return Enrolled(node, self.renew(node, csr_pem))

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

    def refresh(self, now: datetime | None = None, *, force: bool = False) -> IdentityFolder:
        """Return the coordinator's identity, made or renewed first if needed: it can always sign its own.

        A certificate that lies in the future, since the clock was wrong when it was signed, is renewed as well. With
        `force` it is renewed whatever the clock says.
        """
        at = now or datetime.now(UTC)
        try:
            identity = self.identity.read()
        except IdentityError as error:
            if error.reason != "missing":
                raise
            key = make_key()
            self.identity.save(key, self.authority.sign(make_csr(key), COORDINATOR, self.lifetime), self.authority.pem)
            return self.identity
        is_future = at < identity.certificate.not_valid_before_utc
        if is_future:
            begins = format_time(identity.certificate.not_valid_before_utc)
            _log.warning("The coordinator's certificate is not valid before %s: it is signed anew.", begins)
        if force or is_future or identity.should_renew(at):
            if not force:
                self._check_clock(identity.expires, at)
            self.identity.replace_certificate(self.authority.sign(make_csr(identity.key), COORDINATOR, self.lifetime))
        return self.identity

    def _check_clock(self, expired: datetime, now: datetime) -> None:
        """Refuse a renewal so late that the clock may be wrong: then it would be signed into the future."""
        if now > expired + self.grace:
            raise IdentityError(
                "clock",
                f"The coordinator's certificate expired at {format_time(expired)}, and the clock says "
                f"{format_time(now)}. If the clock is right, type `hatdfed ca renew --force`; edges then have to join "
                "again.",
            )


def create_identity_store(folder: Path, lifetime: timedelta = LIFETIME) -> IdentityStore:
    """Create a new authority and the coordinator's identity."""
    store = _assemble(create_authority(folder), lifetime)
    store.refresh()
    return store


def open_identity_store(folder: Path, lifetime: timedelta = LIFETIME, grace: timedelta = GRACE) -> IdentityStore:
    """Open a folder made by `create_identity_store`. A coordinator calls `refresh` before it uses its identity."""
    return _assemble(load_authority(folder), lifetime, grace)


def _assemble(authority: Authority, lifetime: timedelta, grace: timedelta = GRACE) -> IdentityStore:
    folder = authority.folder
    return IdentityStore(
        authority,
        TokenStore(folder / "tokens.sqlite"),
        DenyList(folder / "denied.txt"),
        IdentityFolder(folder / "coordinator"),
        lifetime,
        grace,
    )
