"""Regret: the utility that was missed against the best links, in the mean over draws, Eq. (23), and its bounds.

Utilities lie in [0, 1] and do not depend on the draw of their own round. docs/theory.md derives the bounds.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from hatdfed.core.links import FloatColumn

_SAMPLE = 1 << 15


class Regret(NamedTuple):
    """Utility missed so far, Eq. (23), against two opponents."""

    best_fixed: float  # the best set of links kept for all rounds: what bandit bounds are about; nan of varying size
    best_each_round: float  # the best set of every single round: what Eq. (22) prints


class RegretSums(NamedTuple):
    """What regret is computed from, over the rounds that left a choice."""

    utility: FloatColumn  # [E] of every link that is considered
    drawn: float = 0.0  # Σ p·u
    best_each_round: float = 0.0  # of each round's best links
    num_links: int = 0  # drawn in every round; 0 before the first, −1 where their number has changed

    def add(self, propensity: FloatColumn, utility: FloatColumn, num_possible: int) -> RegretSums:
        """Add a round, if it left a choice: some links were drawn, but not all that were possible."""
        num_links = round(float(propensity.sum()))
        if not 0 < num_links < num_possible:
            return self
        return RegretSums(
            utility=self.utility + utility,
            drawn=self.drawn + float(np.dot(propensity, utility)),
            best_each_round=self.best_each_round + best_links_utility(utility, num_links),
            num_links=num_links if self.num_links in (0, num_links) else -1,
        )

    def regret(self) -> Regret:
        """Against the best fixed set there is none where the number of links has changed: sets of which size?"""
        fixed = best_links_utility(self.utility, self.num_links) if self.num_links >= 0 else math.nan
        return Regret(fixed - self.drawn, self.best_each_round - self.drawn)


def best_links_utility(utility: FloatColumn, num_links: int) -> float:
    """What the best `num_links` links are worth together.

    With equal weights the paper's P2 is "take the largest": selection solves it, no knapsack is needed (D14).
    """
    if num_links == 0:
        return 0.0
    values = _with_the_largest(utility, num_links)
    return float(np.partition(values, len(values) - num_links)[-num_links:].sum())


def _with_the_largest(values: FloatColumn, count: int) -> FloatColumn:
    """Some of the values, the `count` largest among them; of very many, not many more than those.

    A sample tells above which value to look. If fewer than `count` are there, a lower one is tried.
    """
    sample = values[:: max(1, len(values) // _SAMPLE)]
    rank = 2 * count * len(sample) // len(values) + 32  # in the sample; twice what is expected, and some
    while len(values) > 2 * _SAMPLE and rank < len(sample) // 4:
        largest: FloatColumn = values[values >= np.partition(sample, -rank)[-rank]]
        if len(largest) >= count:
            return largest
        rank *= 2
    return values


def standard_bound(links: int, drawn: int, rounds: int, learning_rate: float) -> float:
    """B·ln(n/B)/η + η·K·n/2: holds for the bandit of Eqs. (15)–(18) with any η > 0 (docs/theory.md, section 3)."""
    _check(links, drawn, rounds)
    if not learning_rate >= 0:
        raise ValueError(f"the learning rate is {learning_rate}, but cannot be negative")
    spread = drawn * math.log(links / drawn)
    if spread == 0:  # all links are drawn: there is nothing to learn
        return learning_rate * rounds * links / 2
    return math.inf if learning_rate == 0 else spread / learning_rate + learning_rate * rounds * links / 2


def best_learning_rate(links: int, drawn: int, rounds: int) -> float:
    """η = √(2·B·ln(n/B) / (n·K)), where `standard_bound` is least: √(2·n·B·K·ln(n/B)) (docs/theory.md, section 3)."""
    _check(links, drawn, rounds)
    return math.sqrt(2 * drawn * math.log(links / drawn) / (links * rounds))


def printed_bound(servers: int, rounds: int) -> float:
    """3·N·√(K·log N), Eq. (25) as printed; it lacks the budget and does not hold (docs/theory.md, section 4)."""
    if servers < 1 or rounds < 1:
        raise ValueError(f"{servers} servers and {rounds} rounds: both must be at least 1")
    return 3 * servers * math.sqrt(rounds * math.log(servers))


def _check(links: int, drawn: int, rounds: int) -> None:
    if not 1 <= drawn <= links or rounds < 1:
        raise ValueError(f"{drawn} of {links} links in {rounds} rounds: need 1 ≤ drawn ≤ links and a round or more")
