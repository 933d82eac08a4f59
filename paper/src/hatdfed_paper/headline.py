"""The figures of the paper's abstract and text, measured over our runs: gains and savings, paired over seeds.

A seed's figure is the mean over all settings and data sets that have it; intervals are over seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hatdfed.runs.statistics import PairedDifference
from hatdfed_paper.claims import Claims
from hatdfed_paper.experiments import EXPERIMENTS, table1
from hatdfed_paper.markdown import NOTHING, format_difference, table
from hatdfed_paper.plan import FULL, Scale
from hatdfed_paper.results import Results
from hatdfed_paper.rows import Row


def measure_headline(results: Results, scale: Scale) -> dict[str, Any]:
    """Every figure of the headline that our runs can say something about, as paired differences."""
    found: dict[str, Any] = {}
    for experiment in EXPERIMENTS.values():
        if experiment.headline is not None:
            found |= experiment.headline(results, scale)
    known = {name: _change_known(value, lambda each: each) for name, value in found.items()}
    return {name: value for name, value in known.items() if value}


def headline_rows(results: Results, claims: Claims, scale: Scale) -> list[Row]:
    """One row with the keys of the published headline; `intervals` has the same keys."""
    measured = measure_headline(results, scale)
    if not measured:
        return []
    found = {name: measured[name] for name in claims.headline if name in measured}
    flat = {name: _change_known(value, lambda each: round(each.mean, 4)) for name, value in found.items()}
    intervals = {name: _change_known(value, _ends) for name, value in found.items()}
    pairs = {name: _change_known(value, lambda each: each.n) for name, value in found.items()}
    published = claims.headline if scale == FULL else None
    there = [set(results.at(contest.mine)) for contest in table1.contests(scale)]
    seeds = sorted(set.intersection(*there))
    return [{**flat, "intervals": intervals, "pairs": pairs, "seeds": seeds, "published": published}]


def _change_known(value: Any, change: Callable[[PairedDifference], Any]) -> Any:
    """Change what is known in a figure, a list or a dict of figures; None where nothing is."""
    if isinstance(value, PairedDifference):
        return change(value)
    if isinstance(value, dict):
        return {name: change(each) for name, each in value.items() if each is not None}
    if isinstance(value, list):
        return [change(each) for each in value] if all(each is not None for each in value) else None
    return None


def _ends(difference: PairedDifference) -> list[float | None]:
    return [None if end is None else round(end, 4) for end in (difference.low, difference.high)]


def headline_markdown(rows: Sequence[Row]) -> str:
    """Ours with the interval, and the published figures."""
    cells = []
    for row in rows:
        for name, ours in row.items():
            if name not in ("published", "intervals", "pairs", "seeds"):
                published = None if row["published"] is None else row["published"][name]
                cells += _cells(name, ours, row["intervals"][name], published)
    return table(["figure", "ours", "published"], cells)


def _cells(name: str, ours: Any, ends: Any, published: Any) -> list[list[str]]:
    if isinstance(ours, dict):
        parts = [(f"{name}, {key}", ours[key], ends[key], (published or {}).get(key)) for key in ours]
    elif isinstance(ours, list):
        words = ("total", "link")
        parts = [(f"{name}, {w}", ours[k], ends[k], (published or [None] * 2)[k]) for k, w in enumerate(words)]
    else:
        parts = [(name, ours, ends, published)]
    return [
        [
            words,
            format_difference({"mean": mean, "low": low, "high": high}, 1),
            NOTHING if theirs is None else f"{theirs:+.1f}",
        ]
        for words, mean, (low, high), theirs in parts
    ]
