"""What regret may be expected to stay under; docs/theory.md derives each formula.

Regret is the utility missed against the best fixed set of links, in the mean over draws. Utilities lie in [0, 1] and do
not depend on the draw of their own round.
"""

from __future__ import annotations

import math


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
