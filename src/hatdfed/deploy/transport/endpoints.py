"""gRPC servers and channels, with the settings that keep a silent network partition from hanging a run.

With an identity every connection uses mutual TLS, and a node's name comes from its certificate alone. gRPC's defaults
are kept: TLS 1.2 and 1.3 only, with ciphers that have forward secrecy. Without an identity everything is plain text and
names are taken on trust, which a user has to ask for with `--insecure`.
"""

from __future__ import annotations

import ipaddress
import logging
import resource
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any, Protocol, cast
from urllib.parse import unquote

import grpc

from hatdfed.deploy.identity.certificates import certificate_from_pem, renewal_time
from hatdfed.deploy.identity.files import IdentityFolder
from hatdfed.deploy.identity.names import COORDINATOR, NodeId, node_from_uri
from hatdfed.errors import ConfigError, IdentityError

_log = logging.getLogger("hatdfed.deploy.transport.endpoints")
_USER_AGENT = "hatdfed-node/"
_URI_START = b"spiffe://"
_MESSAGE_BYTES = 4 * 1024 * 1024  # that a coordinator may send, such as the status of a thousand servers
# What edges accept of each other: a chunk of 1 MiB, or a header with a digest of 32 bytes for each MiB of a model. So a
# model can have 36 GiB.
PEER_BYTES = 1024 * 1024 + 128 * 1024
# What a coordinator accepts. The longest message is a report; with 1000 servers, all linked, it takes half of this.
COORDINATOR_BYTES = 512 * 1024
_COMMON = [
    # Only uncompressed messages: 4 KB can expand to 4 MB of empty entries.
    ("grpc.compression_enabled_algorithms_bitset", 1),
    ("grpc.max_send_message_length", _MESSAGE_BYTES),
]
# gRPC sends no keepalive pings by default: without these a lost connection is noticed only after many minutes.
_CLIENT = [
    *_COMMON,
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 5_000),
    ("grpc.enable_http_proxy", 0),  # edges connect to each other directly, never through a proxy
    ("grpc.use_local_subchannel_pool", 1),  # a new channel is a new connection, with the present certificate
]
_SERVER = [
    *_COMMON,
    ("grpc.keepalive_time_ms", 20_000),  # the coordinator, too, must notice a lost edge
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_ping_strikes", 0),
    # A connection belongs to one caller, which has few calls at a time: orders, a heartbeat and a report, or a model in
    # each direction with its questions. Each can hold a message in memory; further ones wait at the caller.
    ("grpc.max_concurrent_streams", 16),
    ("grpc.so_reuseport", 0),  # a second server on the same port is a mistake
    ("grpc.server_handshake_timeout_ms", 10_000),  # callers without a certificate cannot finish one
]
_MAX_FILES = 65_536
_RESERVED_FILES = 64  # for everything but the server's connections: records, join server, metrics


@dataclass(frozen=True)
class Caller:
    """Who calls, and until when its certificate is valid."""

    node: NodeId
    expires: datetime | None  # None: in plain text
    renews: datetime | None = None  # when it is due for renewal; None: in plain text


@dataclass(frozen=True)
class Endpoints:
    """Opens this process's servers and channels."""

    identity: IdentityFolder | None  # None: plain text
    node: NodeId = COORDINATOR  # the name that this process gives in plain text
    connection_seconds: float = 600.0  # after which clients of a server connect anew, so that handshakes recur

    def make_server(self, *, stream_seconds: float | None = None, message_bytes: int = PEER_BYTES) -> grpc.aio.Server:
        """Make a server that does not listen yet.

        It receives messages of at most `message_bytes`. Its connections end after `connection_seconds`; calls in
        progress may take `stream_seconds` longer, or as long as they need.
        """
        options = [
            *_SERVER,
            ("grpc.max_receive_message_length", message_bytes),
            ("grpc.max_allowed_incoming_connections", _max_connections()),
            ("grpc.max_connection_age_ms", int(1000 * self.connection_seconds)),
        ]
        if stream_seconds is not None:
            options.append(("grpc.max_connection_age_grace_ms", int(1000 * stream_seconds)))
        return grpc.aio.server(options=options)

    def listen(self, server: grpc.aio.Server, address: str) -> int:
        """Open a port and return its number, which the system chooses if `address` ends in :0."""
        try:
            if self.identity is None:
                return int(server.add_insecure_port(address))
            return int(server.add_secure_port(address, server_credentials(self.identity)))
        except RuntimeError:
            raise ConfigError(f"Cannot listen at {address}: the port is taken or not ours. Choose another.") from None

    def open_channel(self, address: str, peer: NodeId) -> grpc.aio.Channel:
        """Open a channel to `peer`; with certificates, any other node at that address is refused."""
        longest = _MESSAGE_BYTES if peer == COORDINATOR else PEER_BYTES
        options = [*_CLIENT, ("grpc.max_receive_message_length", longest)]
        if self.identity is None:
            agent = f"{_USER_AGENT}{self.node.role}/{self.node.name}"
            return grpc.aio.insecure_channel(address, options=[*options, ("grpc.primary_user_agent", agent)])
        credentials = channel_credentials(self.identity)
        return grpc.aio.secure_channel(address, credentials, options=[*options, *target_name_options(peer)])

    def identify_caller(self, context: Any) -> Caller:
        """Return who calls: by certificate, or in plain text by the name that the caller gives."""
        if self.identity is None:
            return Caller(_read_user_agent(context), None)
        return Caller(identify_peer(context), *_read_times(context))


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


def _read_times(context: CallContext) -> tuple[datetime, datetime]:
    """Return when the certificate with which the caller has connected expires, and when it is due for renewal."""
    shown = list((context.auth_context() or {}).get("x509_pem_cert", ()))
    if len(shown) != 1:
        raise IdentityError("bad-certificate", f"The caller has shown {len(shown)} certificates, but must show one.")
    return _parse_times(shown[0])


@lru_cache(maxsize=1024)
def _parse_times(pem: bytes) -> tuple[datetime, datetime]:
    certificate = certificate_from_pem(pem, "The caller's connection")
    return certificate.not_valid_after_utc, renewal_time(certificate)


def _server_configuration(folder: IdentityFolder) -> grpc.ServerCertificateConfiguration:
    identity = folder.load()
    return grpc.ssl_server_certificate_configuration([(identity.key_pem, identity.cert_pem)], identity.ca_pem)


def _read_user_agent(context: Any) -> NodeId:
    """Return the name that a caller in plain text gives."""
    agent = str(dict(context.invocation_metadata()).get("user-agent", ""))
    role, _, name = agent.removeprefix(_USER_AGENT).partition(" ")[0].partition("/")
    if not agent.startswith(_USER_AGENT):
        raise IdentityError("no-node-name", "A caller did not say who it is.")
    return NodeId(role, name)


def read_address(context: Any) -> str:
    """Return the address that a call comes from, without its port: gRPC writes ipv4:192.0.2.1:50000."""
    return unquote(context.peer()).partition(":")[2].rpartition(":")[0].strip("[]")


def refuse_open_plain_text(address: str, *, forced: bool) -> None:
    """Raise `ConfigError` if plain text would leave this machine, unless the user forces it."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        is_local = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_local = False
    if not is_local and not forced:
        raise ConfigError(
            f"--insecure would send models in plain text through {address or 'an unnamed address'}, which is not this "
            "machine alone. Use certificates (`hatdfed ca init`), or add --insecure-anywhere if the network is yours."
        )


def raise_file_limit() -> None:
    """Raise the limit of open files as far as allowed: every connection is a file, and the default is low."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, _MAX_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _max_connections() -> int:
    """Return how many connections a server accepts; the other files are for records and for calls to others."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = _MAX_FILES if soft == resource.RLIM_INFINITY else soft
    return max(16, files // 2 - _RESERVED_FILES)
