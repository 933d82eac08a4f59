"""Known prices are treated as known: a bandit learns what links bring, and what they cost is told, not learned.

The weight of a link is what the bandit has learned of it, times e^(−thrift · price), with prices scaled to [0, 1]. With
`learning_rate: 0` nothing is learned, and links are drawn by price alone; with `thrift: 0` as well, at random.

Feed it the accuracy part of the utility alone (`gain_share: 1`): the rest is prices, which it has.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from hatdfed.core.drawing.budgeted import cap_to_budget, dependent_rounding
from hatdfed.core.drawing.regular import balance, balanced_rounding
from hatdfed.core.drawing.regular_sparse import UNITS, balanced_units, halving_rounding
from hatdfed.core.links import BoolColumn, BoolMatrix, FloatColumn, FloatMatrix, LinkTable
from hatdfed.core.policies.base import Feedback, Policy, PolicyContext, make_draw
from hatdfed.core.policies.link_bandit import BanditState, LinkBandit
from hatdfed.core.round import LinkDraw
from hatdfed.errors import ConfigError

APART = 12.0  # e-folds by which links between servers that should not hear each other are behind all others


@dataclass(frozen=True)
class PricedLinks(Policy):
    """As many links as the budget, by learned worth and known price."""

    name: ClassVar[str] = "priced-links"

    takes_candidates = True

    thrift: float = 2.0  # how many e-folds the dearest link is behind the cheapest
    learning_rate: float | None = None  # η; None: the theorem's

    def __post_init__(self) -> None:
        if not 0 <= self.thrift <= 100:
            raise ConfigError(f"policy.thrift is {self.thrift}, but must lie between 0 and 100; 0 ignores prices.")
        self._bandit.__post_init__()  # says what is wrong with a learning rate

    @property
    def _bandit(self) -> LinkBandit:
        return LinkBandit(learning_rate=self.learning_rate)

    def init(self, num_servers: int) -> BanditState:
        """Nothing is known but prices."""
        return self._bandit.init(num_servers)

    def grow(self, state: BanditState, num_servers: int) -> BanditState:
        """Links of a new server start at the mean log-weight of those there are."""
        return self._bandit.grow(state, num_servers)

    def propose(self, state: BanditState, context: PolicyContext, rng: np.random.Generator) -> LinkDraw:
        """Draw by learned weight and price."""
        return free_draw(self.preference(state, context), context, context.budget, rng)

    def update(self, state: BanditState, draw: LinkDraw, feedback: Feedback, context: PolicyContext) -> BanditState:
        """As the paper's bandit, Eqs. (15)–(16)."""
        return self._bandit.update(state, draw, feedback, context)

    def init_for(self, links: LinkTable) -> BanditState:
        """The same, for these links only."""
        return self._bandit.init_for(links)

    def preference(self, state: BanditState, context: PolicyContext) -> FloatColumn:
        """The log-weight of every link: what has been learned, less what its price speaks against it."""
        return state.log_weights - self.thrift * scale_prices(context.prices, context.possible)

    def swap_candidates(self, state: BanditState, carry: Callable[[FloatColumn], FloatColumn]) -> BanditState:
        """What is known about those that stay."""
        return self._bandit.swap_candidates(state, carry)


@dataclass(frozen=True)
class BalancedLinks(PricedLinks):
    """Priced links of which every server receives `degree` and sends `degree`.

    Where servers or links are missing so that this cannot be, as many links are drawn wherever they fall.
    """

    name: ClassVar[str] = "balanced-links"

    uses_budget = False

    degree: int | None = 1  # None: 1 up to eight servers, and one more for every doubling

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.degree is not None and self.degree < 1:
            raise ConfigError(f"policy.degree is {self.degree}, but must be at least 1.")

    def propose(self, state: BanditState, context: PolicyContext, rng: np.random.Generator) -> LinkDraw:
        """Draw by learned weight and price, among choices in which all degrees are equal."""
        return draw_balanced(self.preference(state, context), context, find_degree(self.degree, context.links), rng)


def find_degree(degree: int | None, links: LinkTable) -> int:
    """So many for N servers. Where all hear about log2 N others, what one knows is everywhere in a few rounds."""
    if degree is None:
        return min(max(1, math.ceil(math.log2(links.num_servers)) - 2), links.degree)
    if degree > links.degree:
        among = f"{links.num_servers} servers have" if links.has_all else "every server considers"
        raise ConfigError(f"policy.degree is {degree}, but {among} {links.degree} others.")
    return degree


def draw_balanced(log_weights: FloatColumn, context: PolicyContext, degree: int, rng: np.random.Generator) -> LinkDraw:
    """Links in which all degrees are equal; as many anywhere, where that cannot be."""
    draw = _draw_from_all if context.links.has_all else _draw_from_candidates
    found = draw(log_weights, context, degree, rng)
    if found is None:
        return free_draw(log_weights, context, degree * int(np.count_nonzero(context.active)), rng)
    return make_draw(context.links, *found)


def draw_inside(
    group: NDArray[np.int64], log_weights: FloatColumn, context: PolicyContext, degree: int, rng: np.random.Generator
) -> BoolColumn:  # [N], [E] -> [E]
    """Balanced links inside every group of two or more; a small group has as many as it can."""
    drawn = np.zeros(len(context.links), dtype=bool)
    for number in np.unique(group[context.active]):
        inside = context._replace(active=context.active & (group == number))
        members = int(np.count_nonzero(inside.active))
        if members > 1:
            drawn |= draw_balanced(log_weights, inside, min(degree, members - 1), rng).drawn
    return drawn


_Draw = tuple[BoolColumn, FloatColumn]  # links and their probabilities, [E] each


def _draw_from_candidates(
    log_weights: FloatColumn, context: PolicyContext, degree: int, rng: np.random.Generator
) -> _Draw | None:
    """Links in which all degrees are equal; None where they cannot be."""
    links = context.links
    weights, possible = links.by_receiver(log_weights), links.by_receiver(context.possible)
    units = balanced_units(weights, possible, links.senders, context.active, degree)
    if units is None:
        return None
    return halving_rounding(units, links.senders, rng).reshape(-1), (units / UNITS).reshape(-1)


def _draw_from_all(
    log_weights: FloatColumn, context: PolicyContext, degree: int, rng: np.random.Generator
) -> _Draw | None:
    """The same where every server considers every other, among the servers that are there."""
    here = np.flatnonzero(context.active)
    inside = np.ix_(here, here)
    possible = context.links.to_dense(context.possible)
    found = _balanced_draw(context.links.to_dense(log_weights)[inside], possible[inside], degree, rng)
    if found is None:
        return None
    drawn, propensity = np.zeros_like(possible), np.zeros(possible.shape)
    drawn[inside], propensity[inside] = found
    return context.links.from_dense(drawn), context.links.from_dense(propensity)


def _balanced_draw(
    log_weights: FloatMatrix, possible: BoolMatrix, degree: int, rng: np.random.Generator
) -> tuple[BoolMatrix, FloatMatrix] | None:  # [N, N] each
    """Links and their probabilities; None where degrees cannot be equal.

    Weights that are very far apart are not balanced by scaling in any reasonable time. Then whole units are, in which
    what is missing is made up for exactly.
    """
    probability = balance(log_weights, possible, degree)
    if probability is not None:
        return balanced_rounding(probability, rng), probability
    size = len(possible)
    others = (np.arange(size)[:, None] + np.arange(1, size)) % max(size, 1)  # of every server
    rows, everybody = np.arange(size)[:, None], np.ones(size, dtype=bool)
    units = balanced_units(log_weights[rows, others], possible[rows, others], others, everybody, degree)
    if units is None:
        return None
    links, propensity = np.zeros_like(possible), np.zeros(possible.shape)
    links[rows, others], propensity[rows, others] = halving_rounding(units, others, rng), units / UNITS
    return links, propensity


def free_draw(log_weights: FloatColumn, context: PolicyContext, budget: int, rng: np.random.Generator) -> LinkDraw:
    """So many of the possible links, or all there are, wherever they fall, Eqs. (17) and (18)."""
    possible = context.possible
    budget = min(budget, int(np.count_nonzero(possible)))
    drawn, propensity = np.zeros_like(possible), np.zeros(len(possible))
    propensity[possible] = cap_to_budget(log_weights[possible], budget)
    drawn[possible] = dependent_rounding(propensity[possible], rng)
    return make_draw(context.links, drawn, propensity)


def scale_prices(prices: FloatColumn, possible: BoolColumn) -> FloatColumn:
    """Prices of the possible links as a share of the way from the cheapest to the dearest."""
    known = prices[possible]
    span = float(np.ptp(known)) if known.size else 0.0
    return (prices - known.min()) / span if span > 0 else np.zeros_like(prices)
