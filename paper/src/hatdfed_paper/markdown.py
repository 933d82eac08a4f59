"""Tables as Markdown, with columns that line up in a terminal, and how figures and differences are written in them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from hatdfed_paper.rows import Row

KEYS = {
    "dataset": "data set",
    "label_concentration": "λ",
    "device_online_probability": "ρ",
    "method": "method",
    "link_share": "γ",
    "servers": "N",
    "gain_share": "α",
    "quality_share": "β",
    "feedback": "feedback",
}

METRICS = {  # ours, published, heading
    "avg_accuracy": ("avg_accuracy", "accuracy %"),
    "std_accuracy": ("var_accuracy", "deviation over servers"),  # D19: the published variance is a deviation
    "best_accuracy": ("best_accuracy", "best server %"),
    "worst_accuracy": ("worst_accuracy", "worst server %"),
    "total_energy_mj": ("total_energy_mj", "total MJ"),
    "link_energy_mj": ("link_energy_mj", "link MJ"),
}
SERVER_ACCURACIES = ("avg_accuracy", "std_accuracy", "best_accuracy", "worst_accuracy")
ACCURACY_AND_ENERGY = ("avg_accuracy", "total_energy_mj", "link_energy_mj")
NOTHING = "–"


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table, padded; nothing without rows."""
    if not rows:
        return ""
    widths = [max(len(line[column]) for line in (headings, *rows)) for column in range(len(headings))]
    lines = [headings, ["-" * width for width in widths], *rows]
    padded = ([cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in padded)


def metrics_markdown(rows: Sequence[Row], metrics: Sequence[str] = tuple(METRICS)) -> str:
    """Ours, and in brackets what is published; a column of keys for each that the rows have."""
    if not rows:
        return ""
    keys = [key for key in rows[0] if key in KEYS]
    headings = [*(KEYS[key] for key in keys), *(METRICS[metric][1] for metric in metrics), "seeds"]
    cells = []
    for row in rows:
        published = row["published"] or {}
        figures = [
            format_figure(row[metric], published.get(METRICS[metric][0]), is_energy=metric.endswith("_mj"))
            for metric in metrics
        ]
        cells.append([*(format_setting(row[key]) for key in keys), *figures, str(len(row["seeds"]))])
    return table(headings, cells)


def format_figure(ours: Sequence[float], published: Sequence[float] | None, *, is_energy: bool = False) -> str:
    """Mean ± deviation (published); a small energy with three digits that count, a small deviation of accuracy as 0."""
    digits = 1 if ours[0] >= 20 else 2
    if is_energy and 0 < ours[0] < 0.1:
        digits = 2 - math.floor(math.log10(ours[0]))
    text = f"{ours[0]:.{digits}f} ± {ours[1]:.{digits}f}"
    return text if published is None else f"{text} ({published[0]:g})"


def format_setting(value: Any) -> str:
    """A setting's value."""
    return value if isinstance(value, str) else f"{value:g}"


def format_seeds(seeds: Sequence[int], difference: Row | None) -> str:
    """How many seeds a row has, and how many of them a difference rests on where the other side lacks some.

    >>> format_seeds([0, 1, 2], {"pairs": 2}), format_seeds([0, 1], {"pairs": 2}), format_seeds([0, 1], None)
    ('3, 2 paired', '2', '2')
    """
    pairs = len(seeds) if difference is None else difference["pairs"]
    return str(len(seeds)) if pairs == len(seeds) else f"{len(seeds)}, {pairs} paired"


def format_difference(difference: Mapping[str, Any], digits: int) -> str:
    """A difference with its interval, where it has one."""
    if difference["low"] is None:
        return f"{difference['mean']:+.{digits}f}"
    low, high = (f"{difference[end]:+.{digits}f}" for end in ("low", "high"))
    return f"{difference['mean']:+.{digits}f} ({low} to {high})"


def format_price(joules: float) -> str:
    """Three digits that count, thousands apart.

    >>> format_price(4129.3), format_price(0.7031)
    ('4,130', '0.703')
    """
    return f"{float(f'{joules:.3g}'):,g}"
