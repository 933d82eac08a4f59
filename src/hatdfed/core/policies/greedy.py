"""Two plain bandits over links, for stochastic rewards: the textbook opponents of the paper's adversarial one.

Both see the utility of drawn links only and keep its mean. Epsilon-greedy takes the largest means and now and then
something else: R. Sutton, A. Barto. Reinforcement learning, section 2.2. Upper confidence takes the largest values that
are still plausible: W. Chen, Y. Wang, Y. Yuan. Combinatorial multi-armed bandit. ICML 2013 (CUCB). Neither divides by
a probability, so their draws are reported as certain.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hatdfed.core.links import BoolMatrix, FloatMatrix
from hatdfed.core.policies.base import Feedback, Policy, PolicyContext, certain
from hatdfed.core.round import LinkDraw
from hatdfed.errors import ConfigError


class MeansState(NamedTuple):
    """How often each link was seen, and what it brought in all."""

    counts: NDArray[np.int64]  # [N, N]
    sums: FloatMatrix  # [N, N] of utility

    def mean(self, unseen: float) -> FloatMatrix:
        """[N, N] average utility; `unseen` where there is none yet."""
        return np.where(self.counts > 0, self.sums / np.maximum(self.counts, 1), unseen)


class _LearnsMeans(Policy):
    """Keeps count of what drawn links brought."""

    def init(self, num_servers: int) -> MeansState:
        """Nothing seen."""
        shape = (num_servers, num_servers)
        return MeansState(np.zeros(shape, dtype=np.int64), np.zeros(shape))

    def grow(self, state: MeansState, num_servers: int) -> MeansState:
        """Links of new servers are unseen."""
        new = (0, num_servers - len(state.counts))
        return MeansState(np.pad(state.counts, (new, new)), np.pad(state.sums, (new, new)))

    def update(self, state: MeansState, draw: LinkDraw, feedback: Feedback, context: PolicyContext) -> MeansState:
        """Add the utility of links that were drawn and whose receiver reported; look at no other."""
        seen = draw.topology.links & feedback.report.reported[:, None]
        return MeansState(state.counts + seen, state.sums + np.where(seen, feedback.utility, 0.0))


@dataclass(frozen=True)
class EpsilonGreedy(_LearnsMeans):
    """The best links so far, but each place in the budget goes to a random one with a small probability."""

    exploration: float = 0.1  # ε: 1 draws like random links

    def __post_init__(self) -> None:
        if not 0 <= self.exploration <= 1:
            raise ConfigError(f"policy.exploration is {self.exploration}, but must lie between 0 and 1.")

    def propose(self, state: MeansState, context: PolicyContext, rng: np.random.Generator) -> LinkDraw:
        """The largest means first, then random ones of the rest; a link never seen counts as 1, the most there is."""
        exploring = int(rng.binomial(context.budget, self.exploration))
        best = largest_links(state.mean(unseen=1.0), context.possible, context.budget - exploring, rng)
        alike = np.zeros(best.shape)
        return certain(best | largest_links(alike, context.possible & ~best, exploring, rng))


@dataclass(frozen=True)
class UpperConfidence(_LearnsMeans):
    """The links that could be best, given how little is known of them."""

    width: float = 1.5  # of the confidence interval; 3/2 is the value of the theorem

    def __post_init__(self) -> None:
        if not 0 <= self.width < math.inf:
            raise ConfigError(f"policy.width is {self.width}, but must be a number of at least 0.")

    def propose(self, state: MeansState, context: PolicyContext, rng: np.random.Generator) -> LinkDraw:
        """The largest mean + √(width·ln(t + 1) / count); links never seen come first."""
        bonus = np.sqrt(self.width * math.log(context.t + 1) / np.maximum(state.counts, 1))
        return certain(largest_links(state.mean(unseen=math.inf) + bonus, context.possible, context.budget, rng))


def largest_links(value: FloatMatrix, possible: BoolMatrix, count: int, rng: np.random.Generator) -> BoolMatrix:
    """The `count` possible links of largest value, or all there are; ties are broken at random."""
    candidates = np.flatnonzero(possible)
    in_order = np.lexsort((rng.random(len(candidates)), -value.flat[candidates]))
    links = np.zeros(possible.shape, dtype=bool)
    links.flat[candidates[in_order[:count]]] = True
    return links
