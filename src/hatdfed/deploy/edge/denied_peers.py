"""The deny list as an edge knows it: the coordinator sends it with its welcome and whenever it changes."""

from __future__ import annotations

import logging

from hatdfed.deploy.protocol import hatdfed_pb2 as pb

_log = logging.getLogger("hatdfed.deploy.edge")


class DeniedPeers:
    """Names of nodes that this edge exchanges nothing with."""

    def __init__(self) -> None:
        self.digest = ""
        self._names: frozenset[str] = frozenset()

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def update(self, denied: pb.DenyList) -> None:
        """Replace the list by the coordinator's."""
        names = frozenset(denied.names)
        if new := names - self._names:
            _log.warning("locked out by the coordinator: %s", ", ".join(sorted(new)))
        self.digest, self._names = denied.digest, names
