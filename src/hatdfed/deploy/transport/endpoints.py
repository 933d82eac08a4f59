"""gRPC servers and channels, with the settings that keep a silent network partition from hanging a run.

With an identity every connection uses mutual TLS, and a node's name comes from its certificate alone. Without one
everything is plain text and names are taken on trust, which a user has to ask for with `--insecure`.
"""

from __future__ import annotations

import ipaddress
import resource
from dataclasses import dataclass
from typing import Any

import grpc

from hatdfed.deploy.identity.files import IdentityFolder
from hatdfed.deploy.identity.names import COORDINATOR, NodeId
from hatdfed.deploy.identity.tls import channel_credentials, identify_peer, server_credentials, target_name_options
from hatdfed.errors import ConfigError, IdentityError

_USER_AGENT = "hatdfed-node/"
_MESSAGE_BYTES = 4 * 1024 * 1024  # models travel in chunks far below this
_COMMON = [
    ("grpc.max_receive_message_length", _MESSAGE_BYTES),
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
]
_SERVER = [
    *_COMMON,
    ("grpc.keepalive_time_ms", 20_000),  # the coordinator, too, must notice a lost edge
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.max_concurrent_streams", 256),
    ("grpc.so_reuseport", 0),  # a second server on the same port is a mistake
    ("grpc.server_handshake_timeout_ms", 10_000),  # callers without a certificate cannot finish one
]
_MAX_FILES = 65_536
_RESERVED_FILES = 64  # for everything but the server's connections: records, join server, metrics


@dataclass(frozen=True)
class Endpoints:
    """Opens this process's servers and channels."""

    identity: IdentityFolder | None  # None: plain text
    node: NodeId = COORDINATOR  # the name that this process gives in plain text

    def make_server(self) -> grpc.aio.Server:
        """Make a server that does not listen yet."""
        return grpc.aio.server(options=[*_SERVER, ("grpc.max_allowed_incoming_connections", _max_connections())])

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
        if self.identity is None:
            agent = f"{_USER_AGENT}{self.node.role}/{self.node.name}"
            return grpc.aio.insecure_channel(address, options=[*_CLIENT, ("grpc.primary_user_agent", agent)])
        options = [*_CLIENT, *target_name_options(peer)]
        return grpc.aio.secure_channel(address, channel_credentials(self.identity), options=options)

    def identify_caller(self, context: Any) -> NodeId:
        """Return who calls: by certificate, or in plain text by the name that the caller gives."""
        return _read_user_agent(context) if self.identity is None else identify_peer(context)


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


def _read_user_agent(context: Any) -> NodeId:
    """Return the name that a caller in plain text gives."""
    agent = str(dict(context.invocation_metadata()).get("user-agent", ""))
    role, _, name = agent.removeprefix(_USER_AGENT).partition(" ")[0].partition("/")
    if not agent.startswith(_USER_AGENT):
        raise IdentityError("no-node-name", "A caller did not say who it is.")
    return NodeId(role, name)


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
