"""The paper's topology: an adversarial bandit with one arm for each directed link (UTC, Algorithms 2 and 4).

Each round the weights become probabilities that sum to the budget, the links are drawn by dependent rounding, and the
drawn ones move their weights by an unbiased estimate of what they were worth.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hatdfed.core.drawing.budgeted import cap_to_budget, clip_to_one, dependent_rounding
from hatdfed.core.links import BoolColumn, FloatColumn, LinkTable, Scalar
from hatdfed.core.policies.base import Feedback, Policy, PolicyContext, certain, make_draw
from hatdfed.core.round import LinkDraw
from hatdfed.errors import ConfigError, require_one_of

_CAPPINGS = ("redistribute", "clip")
_PROPENSITIES = ("before-rounding", "after-rounding")
_PAIRINGS = ("random", "index-order")


class BanditState(NamedTuple):
    """Log of the selection weight of every link that is considered; only differences mean anything."""

    log_weights: FloatColumn  # [E]


@dataclass(frozen=True)
class LinkBandit(Policy):
    """The paper's bandit: draws links with probabilities that follow what they have been worth.

    The fields are its settings; what it learns is `BanditState`.
    """

    name: ClassVar[str] = "link-bandit"

    takes_candidates = True

    learning_rate: float | None = None  # η; None: the theorem's, from the horizon
    exploration: float = 0.0  # share of the budget that all links get alike, as in Exp3.M; the paper has none
    capping: str = "redistribute"  # D12
    propensity: str = "before-rounding"  # D9
    pairing: str = "random"  # D8

    def __post_init__(self) -> None:
        if self.learning_rate is not None and not 0 <= self.learning_rate <= 1:
            raise ConfigError(
                f"policy.learning_rate is {self.learning_rate}, but must lie between 0 and 1. "
                "Leave it out for the value of the paper's theorem."
            )
        if not 0 <= self.exploration <= 1:
            raise ConfigError(f"policy.exploration is {self.exploration}, but must lie between 0 and 1.")
        require_one_of("policy.capping", self.capping, _CAPPINGS)
        if self.exploration and self.capping == "clip":
            raise ConfigError("policy.exploration works with policy.capping redistribute only. Leave one of them out.")
        require_one_of("policy.propensity", self.propensity, _PROPENSITIES)
        require_one_of("policy.pairing", self.pairing, _PAIRINGS)

    def init(self, num_servers: int) -> BanditState:
        """All weights equal to 1. The paper prints 0, from which no product ever leaves (D10)."""
        return self.init_for(LinkTable.all_of(num_servers))

    def grow(self, state: BanditState, num_servers: int) -> BanditState:
        """Links of a new server start at the mean log-weight of those there are."""
        mean = float(state.log_weights.mean()) if len(state.log_weights) else 0.0
        return BanditState(LinkTable.all_of(num_servers).grow(state.log_weights, mean))

    def propose(self, state: BanditState, context: PolicyContext, rng: np.random.Generator) -> LinkDraw:
        """Algorithm 4: weights to probabilities, Eq. (17), to links, Eq. (18)."""
        possible = context.possible
        cap = partial(cap_to_budget, exploration=self.exploration) if self.capping == "redistribute" else clip_to_one
        probability = cap(_gather(state.log_weights, possible), context.budget)
        drawn = _spread(dependent_rounding(probability, rng, shuffle=self.pairing == "random"), possible)
        if self.propensity == "after-rounding":
            return certain(context.links, drawn)
        propensity = _spread(probability, possible)
        propensity.setflags(write=False)  # nobody else holds it: no copy is needed
        return make_draw(context.links, drawn, propensity)

    def update(self, state: BanditState, draw: LinkDraw, feedback: Feedback, context: PolicyContext) -> BanditState:
        """w ← w·exp(η·û), Eq. (16), in logarithms; the largest is kept at 0.

        About links that could not be drawn, and links into a server that sent no report, nothing was learned: they
        move with the average of the others, which leaves their standing as it was.
        """
        rate = _theorem_rate(context) if self.learning_rate is None else self.learning_rate
        drawn, possible = draw.places, context.possible
        estimate = reward_estimate(feedback.utility[drawn], np.True_, draw.propensity[drawn])
        log_weights = state.log_weights + rate  # û is 1 for the many that were not drawn
        log_weights[drawn] = state.log_weights[drawn] + rate * estimate
        if not (possible.all() and feedback.report.reported.all()):
            known = possible & context.links.at_receivers(feedback.report.reported)
            missed = (1 - estimate)[known[drawn]].sum()
            mean = 1 - missed / np.count_nonzero(known) if known.any() else 0.0
            log_weights[~known] = state.log_weights[~known] + rate * mean
        log_weights -= log_weights.max()
        return BanditState(log_weights)

    def init_for(self, links: LinkTable) -> BanditState:
        """The same, for these links only."""
        return BanditState(np.zeros(len(links)))

    def preference(self, state: BanditState, context: PolicyContext) -> FloatColumn:
        """What has been learned."""
        return state.log_weights

    def swap_candidates(self, state: BanditState, carry: Callable[[FloatColumn], FloatColumn]) -> BanditState:
        """What is known about those that stay."""
        return BanditState(carry(state.log_weights))


def reward_estimate(utility: FloatColumn, drawn: BoolColumn | np.bool_, propensity: FloatColumn) -> FloatColumn:
    """û = 1 − 1{drawn}/p · (1 − u), Eq. (15): unbiased when p is the probability from before rounding (D9)."""
    missed = np.zeros_like(utility)
    np.divide(1 - utility, propensity, out=missed, where=drawn)
    return 1 - missed


def theorem_learning_rate(num_servers: int, horizon: int) -> float:
    """η = √(K·log N) / (N·K), from the paper's Theorem 2, Eq. (25)."""
    return math.sqrt(horizon * math.log(num_servers)) / (num_servers * horizon)


def _theorem_rate(context: PolicyContext) -> float:
    """The theorem's, where N² stands for the links; with candidates they are as many as in a smaller fleet."""
    num_servers, considered = context.links.num_servers, context.links.degree
    return theorem_learning_rate(num_servers, context.horizon) * math.sqrt(num_servers / (considered + 1))


def _gather(column: NDArray[Scalar], where: BoolColumn) -> NDArray[Scalar]:
    """The entries that `where` names, in their order; all of them as a rule, which needs no copy."""
    return column if where.all() else column[where]


def _spread(values: NDArray[Scalar], where: BoolColumn) -> NDArray[Scalar]:
    """A column with `values` at the places that `where` names, 0 elsewhere."""
    if len(values) == len(where):
        return values
    column = np.zeros(len(where), dtype=values.dtype)
    column[where] = values
    return column
