"""The names of nodes.

A certificate names its node twice. The URI `spiffe://hatdfed/edge/edge-7` tells a server who calls. The host name
`edge-7.edge.hatdfed.internal` lets a client check whom it reached; no DNS server knows it, so a node is verified by
its name and not by its address, which may change.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from hatdfed.errors import IdentityError

COORDINATOR_ROLE = "coordinator"
EDGE_ROLE = "edge"
RELAY_ROLE = "relay"
VIEWER_ROLE = "viewer"  # reads the status of a run, and nothing else
ROLES = (COORDINATOR_ROLE, EDGE_ROLE, RELAY_ROLE, VIEWER_ROLE)

_SCHEME = "spiffe://hatdfed/"
_DOMAIN = "hatdfed.internal"
# A label of a host name, since it becomes one.
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


@dataclass(frozen=True)
class NodeId:
    """The role and the name of one process of a deployment."""

    role: str
    name: str

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise IdentityError(
                "bad-name", f"A node's role is {self.role!r:.80}, but must be {', '.join(ROLES[:-1])} or {ROLES[-1]}."
            )
        if not _NAME.fullmatch(self.name):
            raise IdentityError(
                "bad-name",
                f"A node's name is {self.name!r:.80}, but must be 1 to 63 of a-z, 0-9 and '-', "
                "with a letter or digit at both ends. Choose a name like edge-7.",
            )

    def __str__(self) -> str:
        return f"{self.role} {self.name}"

    @property
    def uri(self) -> str:
        """The name in the node's certificate that servers read.

        >>> NodeId("edge", "edge-7").uri
        'spiffe://hatdfed/edge/edge-7'
        """
        return f"{_SCHEME}{self.role}/{self.name}"

    @property
    def dns(self) -> str:
        """The name in the node's certificate that clients check.

        >>> NodeId("edge", "edge-7").dns
        'edge-7.edge.hatdfed.internal'
        """
        return f"{self.name}.{self.role}.{_DOMAIN}"


COORDINATOR = NodeId(COORDINATOR_ROLE, "coordinator")


def edge_id(name: str) -> NodeId:
    """Return the id of the edge with this name."""
    return NodeId(EDGE_ROLE, name)


def relay_id(name: str) -> NodeId:
    """Return the id of the relay with this name."""
    return NodeId(RELAY_ROLE, name)


def node_from_uri(uri: str) -> NodeId:
    """Parse the URI of a certificate."""
    role, slash, name = uri.removeprefix(_SCHEME).partition("/")
    if not uri.startswith(_SCHEME) or not slash:
        raise IdentityError(
            "no-node-name", f"A certificate names {uri!r:.120}, which is no node of ours. Wanted: {_SCHEME}ROLE/NAME."
        )
    return NodeId(role, name)
