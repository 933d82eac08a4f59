"""Both ends of a gRPC connection, with the settings that keep a silent partition from hanging a run.

With an identity every connection is mutual TLS, and a node's name comes from its certificate alone. Without one all is
plain text and names are believed, which a user has to ask for by `--insecure`.
"""

from __future__ import annotations

import ipaddress
import resource
from dataclasses import dataclass
from typing import Any

import grpc

from hatdfed.deploy.identity.files import IdentityFolder
from hatdfed.deploy.identity.names import COORDINATOR, Node
from hatdfed.deploy.identity.tls import channel_credentials, options_for, peer_of, server_credentials
from hatdfed.errors import ConfigError, IdentityError

_CLAIM = "hatdfed-node/"
_MESSAGE_BYTES = 4 * 1024 * 1024  # models travel in chunks far below this
_COMMON = [
    ("grpc.max_receive_message_length", _MESSAGE_BYTES),
    ("grpc.max_send_message_length", _MESSAGE_BYTES),
]
# gRPC pings nobody unless told to: without these a cut line is noticed after many minutes.
_CLIENT = [
    *_COMMON,
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 5_000),
    ("grpc.enable_http_proxy", 0),  # edges speak to each other, not to a proxy of the office
]
_SERVER = [
    *_COMMON,
    ("grpc.keepalive_time_ms", 20_000),  # the coordinator, too, must notice an edge that is cut off
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.max_concurrent_streams", 256),
    ("grpc.so_reuseport", 0),  # a second server on the same port is a mistake, not a helper
    ("grpc.server_handshake_timeout_ms", 10_000),  # strangers cannot finish one, and must not wait for ever
]
_MOST_FILES = 65_536
_KEPT_FILES = 64  # for all that is no connection of a server: records, front desk, metrics


@dataclass(frozen=True)
class Endpoints:
    """How this process speaks to others."""

    identity: IdentityFolder | None  # None: plain text
    claims: Node = COORDINATOR  # who this is, where nobody can prove it

    def server(self) -> grpc.aio.Server:
        """Not yet listening."""
        return grpc.aio.server(options=[*_SERVER, ("grpc.max_allowed_incoming_connections", _most_connections())])

    def listen(self, server: grpc.aio.Server, address: str) -> int:
        """Open a port; returns its number, which is new where `address` ends in :0."""
        try:
            if self.identity is None:
                return int(server.add_insecure_port(address))
            return int(server.add_secure_port(address, server_credentials(self.identity)))
        except RuntimeError:
            raise ConfigError(
                f"Nobody can listen at {address}: the port is taken or not ours. Choose another."
            ) from None

    def channel(self, address: str, node: Node) -> grpc.aio.Channel:
        """To `node`, wherever it is; somebody else at that address is refused."""
        if self.identity is None:
            who = f"{_CLAIM}{self.claims.role}/{self.claims.name}"
            return grpc.aio.insecure_channel(address, options=[*_CLIENT, ("grpc.primary_user_agent", who)])
        options = [*_CLIENT, *options_for(node)]
        return grpc.aio.secure_channel(address, channel_credentials(self.identity), options=options)

    def caller(self, context: Any) -> Node:
        """Who calls: by certificate, or where there are none as claimed."""
        return _claimed(context) if self.identity is None else peer_of(context)


def raise_file_limit() -> None:
    """As many open files as this process may have: every connection is one, and the usual limit is low."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _most_connections() -> int:
    """Callers beyond this are turned away, so that files are left to keep records with and to dial others."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = _MOST_FILES if soft == resource.RLIM_INFINITY else soft
    return max(16, files // 2 - _KEPT_FILES)


def _claimed(context: Any) -> Node:
    """Who somebody in plain text says to be."""
    agent = str(dict(context.invocation_metadata()).get("user-agent", ""))
    role, _, name = agent.removeprefix(_CLAIM).partition(" ")[0].partition("/")
    if not agent.startswith(_CLAIM):
        raise IdentityError("no-node-name", "A caller did not say who it is.")
    return Node(role, name)


def refuse_open_plain_text(address: str, *, forced: bool) -> None:
    """Plain text stays on this machine, unless somebody insists."""
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
