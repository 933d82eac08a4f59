"""Regret of the link bandit on sequences of utilities, against the bounds of docs/theory.md. No networks are trained.

taskset -c 0 python benchmarks/regret.py            prints tables, writes results/regret.json
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hatdfed.core.coordinator import links_in_budget
from hatdfed.core.links import LinkTable
from hatdfed.core.policies.base import Feedback, PolicyContext
from hatdfed.core.policies.link_bandit import LinkBandit, theorem_learning_rate
from hatdfed.core.regret import (
    Regret,
    RegretSums,
    best_learning_rate,
    best_links_utility,
    printed_bound,
    standard_bound,
)
from hatdfed.core.round import RoundReport, ServerReport
from hatdfed.randomness import stream
from hatdfed.runs.records.folder import environment

SERVERS = (5, 10, 20)
ROUNDS = 200
LINK_SHARE = 0.3
SEEDS = range(10)
LONG_ROUNDS = 2000  # for the comparison of estimators: a bias shows when the rounds are many

Utilities = NDArray[np.float64]  # [K, n] one row for each round
Sequence = Callable[[int, int, int, np.random.Generator], Utilities]  # n, B, K, rng


def fixed_best(links: int, drawn: int, rounds: int, rng: np.random.Generator) -> Utilities:
    """The counterexample: 1 on one set of `drawn` links, 0 on all others, in every round."""
    return np.tile(_one_set(links, drawn, rng), (rounds, 1))


def bernoulli(links: int, drawn: int, rounds: int, rng: np.random.Generator) -> Utilities:
    """0 or 1 by chance, with mean 0.7 on one set and 0.4 elsewhere."""
    mean = 0.4 + 0.3 * _one_set(links, drawn, rng)
    return (rng.random((rounds, links)) < mean).astype(float)


def uniform(links: int, drawn: int, rounds: int, rng: np.random.Generator) -> Utilities:
    """Uniform in [0.3, 1] on one set and in [0, 0.7] elsewhere."""
    utility: Utilities = 0.3 * _one_set(links, drawn, rng) + 0.7 * rng.random((rounds, links))
    return utility


def switch(links: int, drawn: int, rounds: int, rng: np.random.Generator) -> Utilities:
    """In the first half one set is worth 1 and another ½, in the second half the other one is worth 1 and it 0."""
    first, second = _two_sets(links, drawn, rng)
    utility: Utilities = np.where(np.arange(rounds)[:, None] < rounds // 2, first + second / 2, second)
    return utility


def against_the_leader(links: int, drawn: int, rounds: int, rng: np.random.Generator) -> Utilities:
    """Two disjoint sets take turns, so that the one with more behind it is always the one worth 0 next."""
    first, second = _two_sets(links, drawn, rng)
    utility = np.where(np.arange(rounds)[:, None] % 2 == 0, first, second)
    utility[0] *= 0.5
    return utility


def no_fixed_best(links: int, drawn: int, rounds: int, rng: np.random.Generator) -> Utilities:
    """1 on a set that chance picks anew in every round: no policy can know it."""
    return np.stack([_one_set(links, drawn, rng) for _ in range(rounds)])


SEQUENCES: Mapping[str, Sequence] = {
    "fixed best": fixed_best,
    "Bernoulli": bernoulli,
    "uniform": uniform,
    "switch": switch,
    "against the leader": against_the_leader,
    "no fixed best": no_fixed_best,
}
RATES: Mapping[str, Callable[[int, int, int], float]] = {
    "theorem": lambda servers, drawn, rounds: theorem_learning_rate(servers, rounds),
    "best": lambda servers, drawn, rounds: best_learning_rate(servers * (servers - 1), drawn, rounds),
}


class Summary(NamedTuple):
    """Mean over seeds and the standard error of that mean."""

    mean: float
    error: float


def play(policy: LinkBandit, utilities: Utilities, servers: int, drawn: int, seed: int) -> Regret:
    """Regret of `policy` after the whole sequence, from Σ p·u as in Eq. (23), against both opponents.

    A draw that carries probabilities from after rounding counts what it earned, which has the mean Σ p·u.
    """
    links = LinkTable.all_of(servers)
    alone = ServerReport(0.5, 1, np.zeros(0, dtype=np.int64), np.zeros(0), ())
    report, state, sums = RoundReport((alone,) * servers), policy.init(servers), RegretSums(np.zeros(len(links)))
    everybody, every = np.ones(servers, dtype=bool), np.ones(len(links), dtype=bool)
    for t, utility in enumerate(utilities):
        context = PolicyContext(t, len(utilities), drawn, links, sums.utility, everybody, every)
        draw = policy.propose(state, context, stream(seed, "topology", t))
        sums = sums.add(draw.propensity, utility, len(links))
        state = policy.update(state, draw, Feedback(report, utility), context)
    return sums.regret()


def follow_the_leader(utilities: Utilities, drawn: int) -> float:
    """Regret against the best fixed set when each round takes the links that were worth most so far, all seen."""
    behind = np.vstack([np.zeros(utilities.shape[1]), np.cumsum(utilities, axis=0)[:-1]])
    taken = np.argsort(-behind, axis=1, kind="stable")[:, :drawn]
    earned = np.take_along_axis(utilities, taken, axis=1).sum()
    return best_links_utility(utilities.sum(axis=0), drawn) - float(earned)


def least_regret_on_fixed_best(links: int, drawn: int, rounds: int, learning_rate: float) -> float:
    """B·(1 − B/n)·(1 − e^(−ηK)) / (1 − e^(−η)): proved to be exceeded there (docs/theory.md, section 4)."""
    return drawn * (1 - drawn / links) * math.expm1(-learning_rate * rounds) / math.expm1(-learning_rate)


def utilities_of(name: str, servers: int, drawn: int, rounds: int, seed: int) -> Utilities:
    """The sequence `name` in the world `seed`."""
    return SEQUENCES[name](servers * (servers - 1), drawn, rounds, stream(seed, "utilities", name))


def measure(
    name: str, servers: int, rate: str, seeds: Iterable[int] = SEEDS, rounds: int = ROUNDS, **settings: str
) -> tuple[Summary, Summary]:
    """Mean regret of the bandit on one kind of sequence: against the best fixed set, and that of each round."""
    drawn = links_in_budget(LINK_SHARE, servers)
    policy = LinkBandit(RATES[rate](servers, drawn, rounds), **settings)  # type: ignore[arg-type]  # names of choices
    regrets = [play(policy, utilities_of(name, servers, drawn, rounds, seed), servers, drawn, seed) for seed in seeds]
    return summary([r.best_fixed for r in regrets]), summary([r.best_each_round for r in regrets])


def summary(values: list[float]) -> Summary:
    """Mean and standard error."""
    return Summary(statistics.mean(values), statistics.stdev(values) / math.sqrt(len(values)))


def row_of(name: str, servers: int, rate: str) -> dict[str, Any]:
    """One line of the result: what was measured beside what may be expected."""
    links, drawn = servers * (servers - 1), links_in_budget(LINK_SHARE, servers)
    learning_rate = RATES[rate](servers, drawn, ROUNDS)
    fixed, each = measure(name, servers, rate)
    leader = [follow_the_leader(utilities_of(name, servers, drawn, ROUNDS, seed), drawn) for seed in SEEDS]
    row = {
        "sequence": name,
        "servers": servers,
        "links": links,
        "drawn": drawn,
        "rate": rate,
        "learning_rate": learning_rate,
        "regret": fixed.mean,
        "error": fixed.error,
        "regret_each_round": each.mean,
        "error_each_round": each.error,
        "follow_the_leader": statistics.mean(leader),
        "standard_bound": standard_bound(links, drawn, ROUNDS, learning_rate),
        "printed_bound": printed_bound(servers, ROUNDS),
    }
    if name == "fixed best":
        row["proved_at_least"] = least_regret_on_fixed_best(links, drawn, ROUNDS, learning_rate)
    return row


def estimator_row(rounds: int) -> dict[str, Any]:
    """The estimate with probabilities from before and from after rounding, Bernoulli, N = 5, best η."""
    row: dict[str, Any] = {"sequence": "Bernoulli", "servers": 5, "rate": "best", "rounds": rounds}
    for propensity in ("before-rounding", "after-rounding"):
        fixed, _ = measure("Bernoulli", 5, "best", rounds=rounds, propensity=propensity)
        row[propensity] = fixed.mean
        row[f"{propensity} error"] = fixed.error
    return row


def _one_set(links: int, drawn: int, rng: np.random.Generator) -> NDArray[np.float64]:  # [n], 0 or 1
    first, _ = _two_sets(links, drawn, rng)
    return first


def _two_sets(
    links: int, drawn: int, rng: np.random.Generator
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:  # [n], [n], 0 or 1, disjoint
    place = rng.permutation(links)
    return (place < drawn).astype(float), ((place >= drawn) & (place < 2 * drawn)).astype(float)


def _main() -> None:
    start = time.perf_counter()
    rows = []
    print(
        "| sequence | N | B of n | η | regret | standard bound | printed bound | against each round's best | leader |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for rate in RATES:
        for name in SEQUENCES:
            for servers in SERVERS:
                row = row_of(name, servers, rate)
                rows.append(row)
                print(
                    f"| {name} | {servers} | {row['drawn']} of {row['links']} | {row['learning_rate']:.4f} | "
                    f"{row['regret']:,.0f} ± {row['error']:,.0f} | {row['standard_bound']:,.0f} | "
                    f"{row['printed_bound']:,.0f} | {row['regret_each_round']:,.0f} | {row['follow_the_leader']:,.0f} |"
                )
    estimators = [estimator_row(rounds) for rounds in (ROUNDS, LONG_ROUNDS)]
    for row in estimators:
        print(row)
    content = {
        "machine": environment(),
        "seconds": round(time.perf_counter() - start, 1),
        "rounds": ROUNDS,
        "link_share": LINK_SHARE,
        "seeds": list(SEEDS),
        "rows": rows,
        "estimators": estimators,
    }
    target = Path(__file__).parent / "results" / "regret.json"
    target.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    _main()
