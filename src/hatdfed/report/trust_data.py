"""What figures of trust show, computed from a run's records; imports neither torch nor matplotlib."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hatdfed.core.beliefs import NO_GROUP, Groups
from hatdfed.core.links import BoolMatrix
from hatdfed.report.run_data import Vector
from hatdfed.runs.trust_history import TrustHistory, order_by_group

MOST_SERVERS = 400  # of which a row is still a pixel


class OrderedVerdicts(NamedTuple):
    """The verdicts that were kept last, in the order of the final groups."""

    servers: list[int]
    verdict: Vector  # [n, n] row receives, nan: unknown
    group: Groups  # [n] at the end

    @property
    def inside(self) -> Vector:
        """Verdicts on servers of the same group."""
        return self.verdict[self._together]

    @property
    def outside(self) -> Vector:
        """All others."""
        return self.verdict[~self._together]

    @property
    def _together(self) -> BoolMatrix:  # [n, n]
        together: BoolMatrix = (self.group[:, None] == self.group) & (self.group != NO_GROUP)
        return together


def order_verdicts(trust: TrustHistory) -> OrderedVerdicts | None:
    """Order the last verdicts by group; None where none were kept."""
    if trust.verdicts is None:
        return None
    servers = [server for server in order_by_group(trust.changes) if server < len(trust.verdicts)]
    last = {change.server: change.group_number for change in trust.changes}
    group = np.array([NO_GROUP if (number := last[server]) is None else number for server in servers], dtype=np.int64)
    return OrderedVerdicts(servers, trust.verdicts[np.ix_(servers, servers)].astype(np.float64), group)
