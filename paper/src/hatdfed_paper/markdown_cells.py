"""What a Markdown table is made of: its lines, and how figures and differences are written into them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

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


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table, padded; nothing without rows."""
    if not rows:
        return ""
    widths = [max(len(line[column]) for line in (headings, *rows)) for column in range(len(headings))]
    lines = [headings, ["-" * width for width in widths], *rows]
    padded = ([cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in padded)


def beside(ours: Sequence[float], published: Sequence[float] | None, *, is_energy: bool = False) -> str:
    """Mean ± deviation (published); a small energy with three digits that count, a small deviation of accuracy as 0."""
    digits = 1 if ours[0] >= 20 else 2
    if is_energy and 0 < ours[0] < 0.1:
        digits = 2 - math.floor(math.log10(ours[0]))
    text = f"{ours[0]:.{digits}f} ± {ours[1]:.{digits}f}"
    return text if published is None else f"{text} ({published[0]:g})"


def key_words(value: Any) -> str:
    """A setting's value."""
    return value if isinstance(value, str) else f"{value:g}"


def with_ends(difference: Mapping[str, Any], digits: int) -> str:
    """A difference with its interval, where it has one."""
    if difference["low"] is None:
        return f"{difference['mean']:+.{digits}f}"
    low, high = (f"{difference[end]:+.{digits}f}" for end in ("low", "high"))
    return f"{difference['mean']:+.{digits}f} ({low} to {high})"


def price(joules: float) -> str:
    """Three digits that count, thousands apart.

    >>> price(4129.3), price(0.7031)
    ('4,130', '0.703')
    """
    return f"{float(f'{joules:.3g}'):,g}"
