"""Whether the published baselines are accuracies of the best round: tried as an explanation of those that we miss.

The released code reports a run's best round instead of its last one. Our best round is the best on validation data; the
last round is measured on the test set.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from hatdfed_paper.claims import Claims
from hatdfed_paper.markdown import table
from hatdfed_paper.plan import BASELINES, FULL, SETTING, Scale, Settings, point, settings_of_table_1
from hatdfed_paper.results import Results
from hatdfed_paper.rows import Row

NEAR_POINTS = 3.0  # as in the check of the baselines' mean


def best_round_rows(results: Results, claims: Claims, scale: Scale) -> list[Row]:
    """In every setting, the baselines' mean: last round, best round, and what the paper has."""
    if scale != FULL:
        return []
    rows = []
    for dataset, setting in product(scale.datasets, settings_of_table_1()):
        points = [point(dataset, method, **setting) for method in BASELINES]
        last, best = (_mean(results, points, figure) for figure in ("avg_accuracy", "best_round_accuracy"))
        theirs = [claims.row("table_1", each) for each in points]
        if last is None or best is None or not all(theirs):
            continue
        published = sum(each["avg_accuracy"][0] for each in theirs if each) / len(theirs)
        keys = {"dataset": dataset, **{name: setting[name] for name in SETTING}}
        figures = {"last_round": last, "best_round": best, "published": published}
        seeds = sorted(set.intersection(*(set(results.at(each)) for each in points)))
        rows.append({**keys, **{name: round(value, 2) for name, value in figures.items()}, "seeds": seeds})
    return rows


def _mean(results: Results, points: Sequence[Settings], figure: str) -> float | None:
    seen = [value for each in points for value in results.figures(each, figure).values()]
    return sum(seen) / len(seen) if seen else None


def best_round_markdown(rows: Sequence[Row]) -> str:
    """The rows, and how many lie near the published figures by either reading."""
    if not rows:
        return ""
    cells = [
        [row["dataset"], f"{row['label_concentration']:g}", f"{row['device_online_probability']:g}",
         f"{row['published']:.1f}", _beside(row, "last_round"), _beside(row, "best_round"), str(len(row["seeds"]))]
        for row in rows
    ]  # fmt: skip
    headings = ["data set", "λ", "ρ", "published %", "last round %", "best round %", "seeds"]
    return f"{table(headings, cells)}\n\n{best_round_outcome(rows)}"


def _beside(row: Row, figure: str) -> str:
    return f"{row[figure]:.1f} ({row[figure] - row['published']:+.1f})"


def best_round_outcome(rows: Sequence[Row]) -> str:
    """What the reading explains, in a sentence for each data set."""
    words = []
    for dataset in dict.fromkeys(row["dataset"] for row in rows):
        here = [row for row in rows if row["dataset"] == dataset]
        parts = []
        for figure in ("last_round", "best_round"):
            apart = [row[figure] - row["published"] for row in here]
            near = sum(abs(each) <= NEAR_POINTS for each in apart)
            mean = sum(apart) / len(apart)
            parts.append(f"{figure.replace('_', ' ')} {mean:+.1f} points, near in {near} of {len(here)} settings")
        words.append(f"{dataset}: {'; '.join(parts)}.")
    return f"Mean distance to the published figures (near: within {NEAR_POINTS:g} points). " + " ".join(words)
