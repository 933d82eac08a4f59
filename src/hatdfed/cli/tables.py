"""Results as tables on a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table

from hatdfed.cli.console import joules_text
from hatdfed.config import Config
from hatdfed.summary import JOULES_PER_MJ

COLUMNS = (
    ("avg_accuracy", "accuracy %"),
    ("std_accuracy", "sd of servers"),
    ("best_accuracy", "best %"),
    ("worst_accuracy", "worst %"),
    ("total_energy_mj", "energy"),
    ("link_energy_mj", "link energy"),
    ("links_per_round", "links"),
)


def summary_table(rows: Sequence[Mapping[str, Any]], *, title: str) -> Table:
    """One row for each run or method: the paper's six metrics, and the links they took."""
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("method", no_wrap=True)
    for _, heading in COLUMNS:
        table.add_column(heading, justify="right")
    for row in rows:
        name = f"{row['method']} (sees the test set)" if row.get("leaks_test") else str(row["method"])
        table.add_row(name, *(cell(row, key) for key, _ in COLUMNS))
    return table


def cell(row: Mapping[str, Any], key: str) -> str:
    """One figure of a row, with its deviation over seeds where there is one."""
    value, deviation = float(row[key]), row.get(f"{key}_sd")
    if key.endswith("_mj"):
        text = joules_text(value * JOULES_PER_MJ)
        return text if deviation is None else f"{text} ± {_percent(deviation, value)}"
    if key == "links_per_round":
        return f"{value:.1f}"
    return f"{value:.1f}" if deviation is None else f"{value:.1f} ± {deviation:.1f}"


def _percent(deviation: float, value: float) -> str:
    return f"{100 * deviation / value:.0f} %" if value else "0 %"


def run_title(config: Config) -> str:
    """What a run is, in one line."""
    return f"{config.method} on {config.dataset}, {config.servers} servers, {config.rounds} rounds, seed {config.seed}"
