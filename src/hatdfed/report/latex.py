"""Tables for papers: LaTeX with the rules of the package booktabs.

A table says in its caption what ± means. Everything that a user may have named is escaped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hatdfed.report.formatting import energy_unit
from hatdfed.runs.summary import JOULES_PER_MJ

Row = Mapping[str, Any]

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
    "±": r"$\pm$",
    "−": "$-$",
    "–": "--",
    "†": r"$\dagger$",
    "‡": r"$\ddagger$",
}
_MARKS = {
    "leaks_test": ("†", "†: sees the test set, not comparable."),
    "has_parameter_server": ("‡", "‡: has a parameter server, a centralised reference."),
}
_TO_REFERENCE = {"avg_accuracy_difference": 2, "total_energy_percent_difference": 1}  # decimals
_SWEEP = {
    "validation_accuracy": "validation (%)",
    "avg_accuracy": "test (%)",
    "worst_accuracy": "worst test (%)",
    "total_joules": "energy",
    "link_joules": "link energy",
    "links_per_round": "links",
}


def escape(text: str) -> str:
    r"""Escape the characters that have a meaning in LaTeX, or are not in its fonts.

    >>> escape("link_share 40 %")
    'link\\_share 40 \\%'
    """
    return "".join(_SPECIAL.get(letter, letter) for letter in text)


def make_table(headings: Sequence[str], rows: Sequence[Sequence[str]], caption: str, label: str) -> str:
    """Make a table with the first column to the left and numbers to the right; cells are plain text."""
    lines = [" & ".join(map(escape, cells)) + r" \\" for cells in (headings, *rows)]
    return "\n".join(
        [
            "% needs \\usepackage{booktabs}",
            r"\begin{table}",
            r"  \centering",
            f"  \\caption{{{escape(caption)}}}",
            f"  \\label{{tab:{label}}}",
            f"  \\begin{{tabular}}{{l{'r' * (len(headings) - 1)}}}",
            r"    \toprule",
            f"    {lines[0]}",
            r"    \midrule",
            *(f"    {line}" for line in lines[1:]),
            r"    \bottomrule",
            r"  \end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def make_comparison_table(rows: Sequence[Row]) -> str:
    """Make the table of a comparison's methods: accuracy on the test set, energy and links."""
    unit = energy_unit(JOULES_PER_MJ * max(row["total_energy_megajoules"] for row in rows))
    scale = JOULES_PER_MJ / unit.joules
    columns = {
        "avg_accuracy": ("accuracy (%)", 1.0, 1),
        "worst_accuracy": ("worst server (%)", 1.0, 1),
        "total_energy_megajoules": (f"energy ({unit.symbol})", scale, 2),
        "link_energy_megajoules": (f"link energy ({unit.symbol})", scale, 2),
        "links_per_round": ("links per round", 1.0, 1),
    }
    cells = [
        [_name(row), *(_with_deviation(row, key, scale, places) for key, (_, scale, places) in columns.items())]
        for row in rows
    ]
    caption = f"Test accuracy and energy after the last round{_describe_seeds(rows)}."
    return make_table(
        ["method", *(name for name, _, _ in columns.values())], cells, _explain(caption, rows), "comparison"
    )


def make_difference_table(rows: Sequence[Row], reference: str) -> str:
    """Make the table of paired differences to the reference, and of what the target accuracy costs."""
    prices = [row["joules_to_target"] for row in rows if row["joules_to_target"] is not None]
    unit = energy_unit(max(prices, default=0.0))
    headings = ["method", "accuracy (points)", "energy (%)", f"energy to target ({unit.symbol})", "time to target (s)"]
    cells = [
        [
            _name(row),
            *(_difference(row, key, places, reference) for key, places in _TO_REFERENCE.items()),
            f"{_number(row['joules_to_target'], 1 / unit.joules, 2)}{_count_reached(row)}",
            _number(row["simulated_seconds_to_target"], 1.0, 1),
        ]
        for row in rows
    ]
    caption = (
        f"Differences to {reference}, paired by seed: mean [95 % interval]. Energy and simulated time to the target "
        "accuracy are means over the seeds that reached it, whose number is in parentheses."
    )
    return make_table(headings, cells, _explain(caption, rows), "differences")


def make_sweep_table(rows: Sequence[Row]) -> str:
    """Make the table of a sweep's points; a star marks those on the front."""
    shown = [name for name in _SWEEP if any(row.get(name) is not None for row in rows)]
    largest = max((row["total_joules"] for row in rows if row["total_joules"] is not None), default=0.0)
    unit = energy_unit(largest)
    headings = [f"{_SWEEP[name]} ({unit.symbol})" if name.endswith("joules") else _SWEEP[name] for name in shown]
    cells = [
        [
            f"{row['point']}{' *' if row['is_on_front'] else ''}{_find_marks(row)}",
            *(_with_deviation(row, name, 1 / unit.joules if name.endswith("joules") else 1.0, 2) for name in shown),
        ]
        for row in rows
    ]
    has_spread = any(row.get("total_joules_sd") is not None for row in rows)
    over = ", mean ± standard deviation over seeds" if has_spread else ", one seed each"
    better = "*: no other point is better at one thing that is sought and worse at none."
    caption = f"Points of the sweep after the last round{over}. {better}"
    return make_table(["point", *headings], cells, _explain(caption, rows), "sweep")


def _name(row: Row) -> str:
    return f"{row['method']}{_find_marks(row)}"


def _find_marks(row: Row) -> str:
    return "".join(f" {mark}" for key, (mark, _) in _MARKS.items() if row.get(key))


def _describe_seeds(rows: Sequence[Row]) -> str:
    counts = sorted({len(row["seeds"]) for row in rows})
    if counts == [1]:
        return ", one seed each"
    seeds = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f": mean ± standard deviation over {seeds} seeds"


def _explain(caption: str, rows: Sequence[Row]) -> str:
    return " ".join([caption, *(words for key, (_, words) in _MARKS.items() if any(row.get(key) for row in rows))])


def _number(value: float | None, scale: float, decimals: int, *, signed: bool = False) -> str:
    if value is None:
        return "–"
    return f"{scale * value:{'+' if signed else ''}z.{decimals}f}".replace("-", "−")


def _with_deviation(row: Row, key: str, scale: float, decimals: int) -> str:
    deviation = row.get(f"{key}_sd") if len(row["seeds"]) > 1 else None
    mean = _number(row.get(key), scale, decimals)
    return mean if deviation is None else f"{mean} ± {_number(deviation, scale, decimals)}"


def _count_reached(row: Row) -> str:
    reached = row.get("seeds_reached")
    return "" if reached is None else f" ({reached} of {len(row['seeds'])})"


def _difference(row: Row, key: str, decimals: int, reference: str) -> str:
    if row["method"] == reference:
        return "reference"
    mean, low, high = (row[f"{key}{end}"] for end in ("", "_low", "_high"))
    if mean is None or low is None:
        return _number(mean, 1.0, decimals, signed=True)
    ends = ", ".join(_number(end, 1.0, decimals, signed=True) for end in (low, high))
    return f"{_number(mean, 1.0, decimals, signed=True)} [{ends}]"
