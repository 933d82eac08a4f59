"""Policies that take the links of largest value so far: the textbook opponents of the paper's adversarial bandit.

Two plain bandits for stochastic rewards see the utility of drawn links only and keep its mean. Epsilon-greedy takes the
largest means and now and then something else: R. Sutton, A. Barto. Reinforcement learning, section 2.2. Upper
confidence takes the largest values that are still plausible: W. Chen, Y. Wang, Y. Yuan. Combinatorial multi-armed
bandit. ICML 2013 (CUCB). The hindsight oracle, a reference for plots of regret, sees the utility of all links, which no
policy can. None divides by a probability, so their draws are reported as certain.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hatdfed.core.links import BoolColumn, FloatColumn, LinkTable
from hatdfed.core.policies.base import Feedback, Policy, PolicyContext, certain
from hatdfed.core.round import LinkDraw
from hatdfed.errors import ConfigError


class MeansState(NamedTuple):
    """How often each link was seen, and what it brought in all."""

    counts: NDArray[np.int64]  # [E]
    sums: FloatColumn  # [E] of utility

    def mean(self, unseen: float) -> FloatColumn:
        """[E] average utility; `unseen` where there is none yet."""
        return np.where(self.counts > 0, self.sums / np.maximum(self.counts, 1), unseen)


class _LearnsMeans(Policy):
    """Keeps count of what drawn links brought."""

    def init(self, num_servers: int) -> MeansState:
        """Nothing seen."""
        num_links = len(LinkTable.all_of(num_servers))
        return MeansState(np.zeros(num_links, dtype=np.int64), np.zeros(num_links))

    def grow(self, state: MeansState, num_servers: int) -> MeansState:
        """Links of new servers are unseen."""
        links = LinkTable.all_of(num_servers)
        return MeansState(links.grow(state.counts), links.grow(state.sums))

    def update(self, state: MeansState, draw: LinkDraw, feedback: Feedback, context: PolicyContext) -> MeansState:
        """Add the utility of links that were drawn and whose receiver reported; look at no other."""
        seen = draw.drawn & context.links.at_receivers(feedback.report.reported)
        return MeansState(state.counts + seen, state.sums + np.where(seen, feedback.utility, 0.0))


@dataclass(frozen=True)
class EpsilonGreedy(_LearnsMeans):
    """The best links so far, but each place in the budget goes to a random one with a small probability."""

    name: ClassVar[str] = "epsilon-greedy"

    exploration: float = 0.1  # ε: 1 draws like random links

    def __post_init__(self) -> None:
        if not 0 <= self.exploration <= 1:
            raise ConfigError(f"policy.exploration is {self.exploration}, but must lie between 0 and 1.")

    def propose(self, state: MeansState, context: PolicyContext, rng: np.random.Generator) -> LinkDraw:
        """The largest means first, then random ones of the rest; a link never seen counts as 1, the most there is."""
        exploring = int(rng.binomial(context.budget, self.exploration))
        best = largest_links(state.mean(unseen=1.0), context.possible, context.budget - exploring, rng)
        alike = np.zeros(best.shape)
        return certain(context.links, best | largest_links(alike, context.possible & ~best, exploring, rng))


@dataclass(frozen=True)
class UpperConfidence(_LearnsMeans):
    """The links that could be best, given how little is known of them."""

    name: ClassVar[str] = "upper-confidence"

    width: float = 1.5  # of the confidence interval; 3/2 is the value of the theorem

    def __post_init__(self) -> None:
        if not 0 <= self.width < math.inf:
            raise ConfigError(f"policy.width is {self.width}, but must be a number of at least 0.")

    def propose(self, state: MeansState, context: PolicyContext, rng: np.random.Generator) -> LinkDraw:
        """The largest mean + √(width·ln(t + 1) / count); links never seen come first."""
        bonus = np.sqrt(self.width * math.log(context.t + 1) / np.maximum(state.counts, 1))
        value = state.mean(unseen=math.inf) + bonus
        return certain(context.links, largest_links(value, context.possible, context.budget, rng))


class OracleState(NamedTuple):
    """What every link would have brought so far."""

    utility_sum: FloatColumn  # [E]


@dataclass(frozen=True)
class HindsightOracle(Policy):
    """The links that would have been best up to now: follow the leader with full information.

    That is possible in a simulation only, where utility is computed for every link, drawn or not. It does not see the
    future: a link is judged by the rounds before. And the gain that stands in the utility of a link that was not drawn
    is what its receiver gained without it.
    """

    name: ClassVar[str] = "hindsight-oracle"

    def init(self, num_servers: int) -> OracleState:
        """All links alike."""
        return OracleState(np.zeros(len(LinkTable.all_of(num_servers))))

    def grow(self, state: OracleState, num_servers: int) -> OracleState:
        """Links of new servers start at 0, as they have in the sums of the regret."""
        return OracleState(LinkTable.all_of(num_servers).grow(state.utility_sum))

    def propose(self, state: OracleState, context: PolicyContext, rng: np.random.Generator) -> LinkDraw:
        """The largest sums; ties are broken at random, so the first draw is uniform."""
        return certain(context.links, largest_links(state.utility_sum, context.possible, context.budget, rng))

    def update(self, state: OracleState, draw: LinkDraw, feedback: Feedback, context: PolicyContext) -> OracleState:
        """Add the utility of all links."""
        return OracleState(state.utility_sum + feedback.utility)


def largest_links(
    value: FloatColumn, possible: BoolColumn, count: int, rng: np.random.Generator
) -> BoolColumn:  # [E] each
    """The `count` possible links of largest value, or all there are; ties are broken at random."""
    places = np.flatnonzero(possible)
    in_order = np.lexsort((rng.random(len(places)), -value[places]))
    largest = np.zeros(len(possible), dtype=bool)
    largest[places[in_order[:count]]] = True
    return largest
