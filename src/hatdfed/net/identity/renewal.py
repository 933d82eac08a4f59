"""A new certificate before the old one ends.

The key stays the same: so only one file changes, and it changes in one step.
"""

from __future__ import annotations

from hatdfed.net.identity.files import Identity, IdentityFolder
from hatdfed.net.identity.keys import csr


def renewed(folder: IdentityFolder) -> bytes:
    """The request to send to the coordinator over a connection that the present certificate opened."""
    return csr(folder.read().key)


def accept_renewal(folder: IdentityFolder, cert_pem: bytes) -> Identity:
    """Put the coordinator's answer in place; one for another key, node or authority is refused and changes nothing."""
    return folder.replace_certificate(cert_pem)
