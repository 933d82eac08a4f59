"""Mutual TLS for gRPC: credentials from an identity folder, and who calls.

gRPC's defaults are kept: TLS 1.2 and 1.3 only, with ciphers that have forward secrecy.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol, cast

import grpc

from hatdfed.deploy.identity.files import IdentityFolder
from hatdfed.deploy.identity.names import NodeId, node_from_uri
from hatdfed.errors import IdentityError

_log = logging.getLogger("hatdfed.deploy.tls")
_URI_START = b"spiffe://"


class CallContext(Protocol):
    """The part of a gRPC servicer context that is used here."""

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        """Return what the TLS handshake established about the caller."""
        ...


class _CertificateReloader:
    """Hands a renewed certificate to gRPC, which asks before every handshake."""

    def __init__(self, folder: IdentityFolder) -> None:
        self._folder = folder
        self._seen = self._folder.stamp
        self.first = _server_configuration(folder)

    def __call__(self) -> grpc.ServerCertificateConfiguration | None:
        try:
            stamp = self._folder.stamp
            if stamp == self._seen:
                return None
            configuration = _server_configuration(self._folder)
        except (IdentityError, OSError) as error:
            # A damaged folder must not end the service: the certificate loaded before stays in use.
            _log.warning("The server goes on with the certificate that it has: %s", error)
            return None
        self._seen = stamp
        return configuration


def server_credentials(folder: IdentityFolder) -> grpc.ServerCredentials:
    """Make server credentials that require client certificates and pick up a renewed one of our own."""
    reloader = _CertificateReloader(folder)
    # gRPC takes None for "no change"; its types do not say so.
    fetch = cast(Callable[[], grpc.ServerCertificateConfiguration], reloader)
    return grpc.dynamic_ssl_server_credentials(reloader.first, fetch, require_client_authentication=True)


def channel_credentials(folder: IdentityFolder) -> grpc.ChannelCredentials:
    """Make channel credentials. A channel keeps them for life: after a renewal, open a new channel."""
    identity = folder.load()
    return grpc.ssl_channel_credentials(identity.ca_pem, identity.key_pem, identity.cert_pem)


def target_name_options(node: NodeId) -> tuple[tuple[str, str], ...]:
    """Return channel options that accept only `node` at the other end, whatever its address."""
    return (("grpc.ssl_target_name_override", node.dns),)


def identify_peer(context: CallContext) -> NodeId:
    """Return the caller that the certificate names; what a message says about its sender is never used."""
    found = context.auth_context() or {}
    uris = set(found.get("peer_spiffe_id", ()))
    if not uris:
        uris = {name for name in found.get("x509_subject_alternative_name", ()) if name.startswith(_URI_START)}
    if len(uris) != 1:
        raise IdentityError(
            "no-node-name", f"The caller's certificate names {len(uris)} nodes, but must name exactly one."
        )
    return node_from_uri(uris.pop().decode("ascii", "replace"))


def _server_configuration(folder: IdentityFolder) -> grpc.ServerCertificateConfiguration:
    identity = folder.load()
    return grpc.ssl_server_certificate_configuration([(identity.key_pem, identity.cert_pem)], identity.ca_pem)
