"""How much every server trains in a round, decided before the round begins like its links."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

MOST_PASSES = 1000  # of a round: more is most likely a typing error, and would take days


class ServerEffort(NamedTuple):
    """What one server is to do in a round."""

    passes: int  # over the round's data; 0: it rests
    asks: bool  # whether devices are asked for data


class Effort(NamedTuple):
    """One decision for each server; a server that takes no part rests and asks nobody."""

    passes: NDArray[np.int64]  # [N] over the round's data; 0: the server rests
    asks: NDArray[np.bool_]  # [N] whether devices are asked for data; otherwise it trains on what it holds

    def of(self, server: int) -> ServerEffort:
        """The decision for one server."""
        return ServerEffort(int(self.passes[server]), bool(self.asks[server]))

    def of_servers(self, first: int, last: int) -> Effort:
        """The effort of servers `first` to `last` − 1."""
        return Effort(self.passes[first:last], self.asks[first:last])

    def rest(self, who: NDArray[np.bool_]) -> Effort:  # [N]
        """Let some servers rest: they neither train nor ask for data."""
        return Effort(np.where(who, 0, self.passes), self.asks & ~who)


def full_effort(num_servers: int, passes: int) -> Effort:
    """The effort of the paper: everybody trains on new data in every round."""
    return Effort(np.full(num_servers, passes, dtype=np.int64), np.ones(num_servers, dtype=bool))
