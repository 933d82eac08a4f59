"""How often the groups of `trusted-links` are the true ones, against the bounds of docs/theory.md, section 8.

Verdicts are drawn, no networks are trained; the groups are found by the policy's own `find_groups`.

taskset -c 0 python benchmarks/group_recovery.py    prints tables, writes results/group-recovery.json
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hatdfed.core.groups import find_groups
from hatdfed.core.links import LinkTable
from hatdfed.core.policies.trusted_links import TrustedLinks
from hatdfed.randomness import stream
from hatdfed.runs.records.folder import environment

SIZES: tuple[tuple[int, ...], ...] = (
    *((5, 5), (8, 2), (4, 3, 3), (8, 1, 1)),
    *((15, 15), (24, 6), (10, 10, 10), (24, 3, 3)),
)
MEANS = (0.2, 0.4, 0.6, 0.8)  # of the terms of a verdict: so much inside groups, the negative across
KNOWN = (1.0, 0.6, 0.3)  # probability of an honest verdict to be known
KNOWN_WITH_LIARS = (1.0, 0.6)
LIARS = (0.0, 0.2, 0.4)  # share of the servers
ATTACKS = ("praise", "divide")
TERMS = 20  # behind each verdict
FEW_SAMPLES = 5.0  # a verdict that rests on so many samples counts half, as in the policy
DRAWS = 200

FAILURE = 0.05  # probability that is asked for in `needed_rows`
MARGINS = (0.2, 0.3, 0.4)
JUDGEMENTS = (1, 10, 100, 1000)  # of one link
LINKS = 10_000  # that are judged so often
MEMORY_MEANS = (0.1, 0.2)

FloatMatrix = NDArray[np.float64]
BoolMatrix = NDArray[np.bool_]
Labels = NDArray[np.int64]


class Case(NamedTuple):
    """What is drawn."""

    sizes: tuple[int, ...]  # of the groups
    mean: float
    known: float
    liars: float = 0.0
    attack: str | None = None  # one of `ATTACKS`, where there are liars

    @property
    def servers(self) -> int:
        """N."""
        return sum(self.sizes)


class World(NamedTuple):
    """One draw."""

    group: Labels  # [N]
    is_liar: NDArray[np.bool_]  # [N]
    verdict: FloatMatrix  # [N, N] of the row about the column
    is_known: BoolMatrix  # [N, N]


class Outcome(NamedTuple):
    """What was found of the honest servers' groups."""

    is_exact: bool
    wrong: float  # links per honest server, to honest ones of other groups that are in its own by mistake
    missed: float  # the same to those of its group that are not in it


def draw_world(case: Case, draw: int) -> World:
    """Who is where, who lies, and who says what about whom.

    An honest verdict is the mean of terms that are 1 or −1, which have the largest variance for their mean. Liars
    answer always, as surely as a report can. With "praise" their models are bad for everybody, and they speak well of
    everybody, so that those who differ are joined. With "divide" they send honest models, and speak well of nobody but
    the liars and one honest server of their group, so that the others and this one are separated.
    """
    rng = stream(draw, "group-recovery", json.dumps(case))
    size = case.servers
    group = rng.permutation(np.repeat(np.arange(len(case.sizes)), case.sizes))
    is_liar = rng.permutation(size) < round(case.liars * size)
    fits = group[:, None] == group
    if case.attack == "praise":
        fits = fits & ~is_liar
    terms = rng.binomial(TERMS, np.where(fits, 1 + case.mean, 1 - case.mean) / 2)
    verdict = (2 * terms / TERMS - 1) * TERMS / (TERMS + FEW_SAMPLES)
    is_known = rng.random((size, size)) < case.known
    told = np.ones((size, size)) if case.attack == "praise" else _divide(group, is_liar)
    verdict, is_known = np.where(is_liar[:, None], told, verdict), is_known | is_liar[:, None]
    is_known &= ~np.eye(size, dtype=bool)
    return World(group, is_liar, np.where(is_known, verdict, 0.0), is_known)


def _divide(group: Labels, is_liar: NDArray[np.bool_]) -> FloatMatrix:  # -> [N, N]
    is_praised = is_liar.copy()
    for each in np.unique(group):
        is_praised[np.flatnonzero((group == each) & ~is_liar)[:1]] = True
    return np.where(is_praised & (group[:, None] == group), 1.0, -1.0)


def compare(found: Labels, world: World) -> Outcome:
    """What was found, beside what is true."""
    honest = ~world.is_liar
    found, group = found[honest], world.group[honest]
    together, belong = found[:, None] == found, group[:, None] == group
    wrong, missed = ((a & ~b).sum() / len(group) for a, b in ((together, belong), (belong, together)))
    return Outcome(bool((together == belong).all()), float(wrong), float(missed))


def measure(case: Case, draws: int = DRAWS) -> tuple[float, float, float]:
    """Share of the draws with exact groups; wrong and missed links per server."""
    worlds = (draw_world(case, draw) for draw in range(draws))
    outcomes = [compare(_find_groups(world), world) for world in worlds]
    exact, wrong, missed = np.array(outcomes, dtype=np.float64).mean(axis=0)
    return float(exact), float(wrong), float(missed)


def _find_groups(world: World) -> Labels:
    links = LinkTable.all_of(len(world.group))
    return find_groups(links, links.from_dense(world.verdict), links.from_dense(world.is_known))


def failure_bound(sizes: Sequence[int], mean: float, known: float, terms: int = TERMS) -> float | None:
    """Bound (c) on the probability of other groups than the true ones; None where none is proved."""
    if known < 1 and len(sizes) > 2:
        return None
    pairs = math.comb(sum(sizes), 2)
    both, one = known**2, 2 * known * (1 - known)
    signs = pairs * (both * math.exp(-terms * mean**2) + one * math.exp(-terms * mean**2 / 2))
    return min(1.0, signs + sum(falls_apart_bound(size, known) for size in sizes))


def falls_apart_bound(size: int, known: float) -> float:
    """Bound on the probability that judged pairs do not connect a group."""
    return sum(math.comb(size, k) * (1 - known) ** (2 * k * (size - k)) for k in range(1, size // 2 + 1))


def needed_samples(servers: int, margin: float, bar: float = TrustedLinks.bar) -> float:
    """Samples behind each verdict at which bound (b) is `FAILURE`."""
    return (2 - bar) ** 2 / (2 * margin**2) * math.log(servers * (servers - 1) / FAILURE)


def cases() -> Iterator[Case]:
    """All of them."""
    for sizes in SIZES:
        for liars in LIARS:
            for attack in ATTACKS if liars else (None,):
                for known in KNOWN_WITH_LIARS if liars else KNOWN:
                    for mean in MEANS:
                        yield Case(sizes, mean, known, liars, attack)


def row_of(case: Case, draws: int = DRAWS) -> dict[str, Any]:
    """One line of the result."""
    exact, wrong, missed = measure(case, draws)
    return {
        "servers": case.servers,
        "sizes": list(case.sizes),
        "mean": case.mean,
        "known": case.known,
        "liars": case.liars,
        "attack": case.attack,
        "exact": exact,
        "wrong_links": wrong,
        "missed_links": missed,
        "failure_bound": None if case.liars else failure_bound(case.sizes, case.mean, case.known),
    }


def memory_row(mean: float, memory: float) -> dict[str, Any]:
    """Share of links inside groups whose verdict is not good, after so many judgements of each."""
    rng = stream(0, "group-recovery-memory", json.dumps(mean))
    running, total = np.zeros(LINKS), np.zeros(LINKS)
    row: dict[str, Any] = {"mean": mean, "memory": memory, "running": [], "plain": []}
    for number in range(1, max(JUDGEMENTS) + 1):
        new = 2 * rng.binomial(TERMS, (1 + mean) / 2, LINKS) / TERMS - 1
        running = new if number == 1 else memory * running + (1 - memory) * new
        total += new
        if number in JUDGEMENTS:
            row["running"].append(float((running <= 0).mean()))
            row["plain"].append(float((total <= 0).mean()))
    return row | {"limit_bound": math.exp(-TERMS * mean**2 / 2 * (1 + memory) / (1 - memory))}


def _main() -> None:
    start = time.perf_counter()
    rows = []
    print("| sizes | mean | known | liars | attack | exact | wrong | missed | bound on failure |")
    print("|---|---|---|---|---|---|---|---|---|")
    for case in cases():
        row = row_of(case)
        rows.append(row)
        bound = "–" if row["failure_bound"] is None else f"{row['failure_bound']:.4f}"
        print(
            f"| {case.sizes} | {case.mean} | {case.known} | {case.liars} | {case.attack} | {row['exact']:.3f} | "
            f"{row['wrong_links']:.2f} | {row['missed_links']:.2f} | {bound} |"
        )
    memory = [memory_row(mean, TrustedLinks.memory) for mean in MEMORY_MEANS]
    needed = [
        {"servers": servers, "margin": margin, "samples": math.ceil(needed_samples(servers, margin))}
        for servers in sorted({sum(sizes) for sizes in SIZES})
        for margin in MARGINS
    ]
    for other in (*memory, *needed):
        print(other)
    content = {
        "machine": environment(),
        "seconds": round(time.perf_counter() - start, 1),
        "draws": DRAWS,
        "terms": TERMS,
        "judgements": list(JUDGEMENTS),
        "links_judged": LINKS,
        "failure": FAILURE,
        "rows": rows,
        "memory": memory,
        "needed": needed,
    }
    target = Path(__file__).parent / "results" / "group-recovery.json"
    target.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    _main()
