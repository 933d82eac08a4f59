"""Results as tables on a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from hatdfed.cli.console import joules_text
from hatdfed.summary import JOULES_PER_MJ

_COLUMNS = (
    ("avg_accuracy", "accuracy %"),
    ("std_accuracy", "over servers, sd"),
    ("best_accuracy", "best %"),
    ("worst_accuracy", "worst %"),
    ("total_energy_mj", "energy"),
    ("link_energy_mj", "of it on links"),
    ("links_per_round", "links a round"),
)


def summary_table(rows: Sequence[Mapping[str, Any]], *, title: str) -> Table:
    """One row for each run or method: the paper's six metrics, and the links they took."""
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("method")
    for _, heading in _COLUMNS:
        table.add_column(heading, justify="right")
    for row in rows:
        name = f"{row['method']} (sees the test set)" if row.get("leaks_test") else str(row["method"])
        table.add_row(name, *(_cell(row, key) for key, _ in _COLUMNS))
    return table


def _cell(row: Mapping[str, Any], key: str) -> str:
    value, deviation = float(row[key]), row.get(f"{key}_sd")
    if key.endswith("_mj"):
        text = joules_text(value * JOULES_PER_MJ)
        return text if deviation is None else f"{text} ± {joules_text(deviation * JOULES_PER_MJ)}"
    return f"{value:.1f}" if deviation is None else f"{value:.1f} ± {deviation:.1f}"
