"""The certificates that an authority has issued: only the newest key of a node can renew after it has expired.

A node keeps its key when it renews, and gets a new one when it joins again. So a copy of an old identity folder is of
no use once its node has joined again, and a certificate that this folder never recorded is of no use at all.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from hatdfed.deploy.identity.certificates import node_from_certificate
from hatdfed.deploy.identity.transactions import open_transaction
from hatdfed.errors import IdentityError

_KEPT = timedelta(days=400)  # after expiry
_MAX_PER_NODE = 50  # the newest; a member that renews all the time must not fill the disk
_SCHEMA = """
CREATE TABLE IF NOT EXISTS issued (
    number INTEGER PRIMARY KEY AUTOINCREMENT, serial TEXT NOT NULL UNIQUE, role TEXT NOT NULL, node TEXT NOT NULL,
    key TEXT NOT NULL, expires REAL NOT NULL)
"""


@dataclass(frozen=True)
class IssuedCertificates:
    """A record of every certificate, in a file that several processes may use at the same time."""

    path: Path

    def record(self, certificate: x509.Certificate) -> None:
        """Record a certificate, before it is handed out."""
        node, expires = node_from_certificate(certificate), certificate.not_valid_after_utc
        row = (_serial(certificate), node.role, node.name, _fingerprint(certificate), expires.timestamp())
        with open_transaction(self.path, _SCHEMA, "issued certificates") as database:
            issued_at = certificate.not_valid_before_utc
            database.execute("DELETE FROM issued WHERE expires < ?", ((issued_at - _KEPT).timestamp(),))
            database.execute("INSERT INTO issued (serial, role, node, key, expires) VALUES (?, ?, ?, ?, ?)", row)
            newest = "SELECT number FROM issued WHERE role = ? AND node = ? ORDER BY number DESC LIMIT ?"
            database.execute(
                f"DELETE FROM issued WHERE role = ? AND node = ? AND number NOT IN ({newest})",  # noqa: S608 (constant)
                (node.role, node.name, node.role, node.name, _MAX_PER_NODE),
            )

    def check(self, certificate: x509.Certificate) -> None:
        """Raise `IdentityError` unless the certificate was issued here, to the present key of its node."""
        node = node_from_certificate(certificate)
        with open_transaction(self.path, _SCHEMA, "issued certificates") as database:
            known = database.execute("SELECT 1 FROM issued WHERE serial = ?", (_serial(certificate),)).fetchone()
            newest = database.execute(
                "SELECT key FROM issued WHERE role = ? AND node = ? ORDER BY number DESC LIMIT 1",
                (node.role, node.name),
            ).fetchone()
        if known is None or newest is None:
            raise IdentityError(
                "unknown-certificate",
                f"This coordinator has no record of the certificate of {node}, so it cannot renew it. "
                "Join again with a new token.",
            )
        if newest[0] != _fingerprint(certificate):
            raise IdentityError(
                "superseded",
                f"{node} has joined again since, with another key, so this certificate is not renewed. "
                "Join again with a new token.",
            )


def _serial(certificate: x509.Certificate) -> str:
    return f"{certificate.serial_number:x}"


def _fingerprint(certificate: x509.Certificate) -> str:
    key = certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(key).hexdigest()
