"""A reference for plots of regret: it sees what no policy can see.

Each round it draws the links with the largest utility sum so far, over all links, drawn or not: follow the leader with
full information. That is possible in a simulation only, where utility is computed for every link. It does not see the
future: a link is judged by the rounds before. And the gain that stands in the utility of a link that was not drawn is
what its receiver gained without it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hatdfed.core.links import FloatMatrix
from hatdfed.core.policies.base import Feedback, Policy, PolicyContext, certain
from hatdfed.core.policies.greedy import largest_links
from hatdfed.core.round import LinkDraw


class OracleState(NamedTuple):
    """What every link would have brought so far."""

    utility_sum: FloatMatrix  # [N, N]


@dataclass(frozen=True)
class HindsightOracle(Policy):
    """The links that would have been best up to now."""

    def init(self, num_servers: int) -> OracleState:
        """All links alike."""
        return OracleState(np.zeros((num_servers, num_servers)))

    def grow(self, state: OracleState, num_servers: int) -> OracleState:
        """Links of new servers start at 0, as they have in the sums of the regret."""
        new = (0, num_servers - len(state.utility_sum))
        return OracleState(np.pad(state.utility_sum, (new, new)))

    def propose(self, state: OracleState, context: PolicyContext, rng: np.random.Generator) -> LinkDraw:
        """The largest sums; ties are broken at random, so the first draw is uniform."""
        return certain(largest_links(state.utility_sum, context.possible, context.budget, rng))

    def update(self, state: OracleState, draw: LinkDraw, feedback: Feedback, context: PolicyContext) -> OracleState:
        """Add the utility of all links."""
        return OracleState(state.utility_sum + feedback.utility)
