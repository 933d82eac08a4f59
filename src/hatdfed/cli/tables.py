"""Results as tables on a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table

from hatdfed.cli.console import joules_text, out
from hatdfed.core.energy.ledger import Cause
from hatdfed.errors import RunFolderError
from hatdfed.runs.summary import JOULES_PER_MJ
from hatdfed.setup.config import Config

COLUMNS = (
    ("avg_accuracy", "accuracy %"),
    ("std_accuracy", "sd of servers"),
    ("best_accuracy", "best %"),
    ("worst_accuracy", "worst %"),
    ("total_energy_mj", "energy"),
    ("link_energy_mj", "link energy"),
    ("links_per_round", "links"),
)
_JOULES = {"J": 1.0, "kJ": 1e3, "MJ": 1e6}
_LEAK = "†"
_LARGEST = 1e300

# Cells have a line break where a narrow table may break them; a table that fits writes a space there.
Row = Mapping[str, Any]


def summary_table(rows: Sequence[Row], *, title: str) -> Table:
    """One row for each run or method: the paper's six metrics, and the links they took."""
    return _fitting(rows, title, [heading for _, heading in COLUMNS], [_figures(row) for row in rows])


def difference_table(rows: Sequence[Row], *, reference: str, target_accuracy: float | None) -> Table:
    """One row for each method: how it stands to the reference, and what its accuracy costs."""
    target = "target" if target_accuracy is None else f"{target_accuracy:.1f} %"
    headings = ["accuracy, points", "energy", "personal %", "upload + training + links", f"until {target} (seeds)"]
    cells = []
    for row in rows:
        is_reference = row["method"] == reference
        accuracy = "reference" if is_reference else _points(row)
        energy = "–" if is_reference else _signed(row["total_energy_percent_difference"], 0, " %")
        cells.append([accuracy, energy, _breakable(cell(row, "personal_accuracy")), _causes(row), _price(row)])
    title = f"Difference to {reference} in the same worlds, mean [95 % interval], and costs"
    return _fitting(rows, title, headings, cells)


def cell(row: Row, key: str) -> str:
    """One figure of a row, with its deviation over seeds where there is one."""
    value, deviation = _number(row, key), row.get(f"{key}_sd")
    if key.endswith("_mj"):
        text = joules_text(value * JOULES_PER_MJ)
        return text if deviation is None else f"{text} ± {_percent(deviation, value)}"
    if key == "links_per_round":
        return f"{value:.1f}"
    return f"{value:.1f}" if deviation is None else f"{value:.1f} ± {deviation:.1f}"


def _number(row: Row, key: str) -> float:
    """A figure; what was read from a file may be anything."""
    value = row.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > _LARGEST:
        found = "missing" if key not in row else "no number that can be shown"
        raise RunFolderError(f"The results are incomplete: {key} is {found}. Finish the run again by --resume.")
    return float(value)


def run_title(config: Config) -> str:
    """What a run is, in one line."""
    return f"{config.method} on {config.dataset}, {config.servers} servers, {config.rounds} rounds, seed {config.seed}"


def _fitting(rows: Sequence[Row], title: str, headings: Sequence[str], cells: Sequence[Sequence[str]]) -> Table:
    """A table with one line a row where the terminal is wide enough, with several where it is not."""
    wide = _table(rows, title, headings, [[text.replace("\n", " ") for text in line] for line in cells])
    folded = [_folded(heading, column) for heading, column in zip(headings, zip(*cells, strict=True), strict=True)]
    tries = (wide, *(_table(rows, title, folded, cells, space=space) for space in (1, 0)))
    at_will = out.options.update(width=1000)
    return next((table for table in tries if out.measure(table, options=at_will).maximum <= out.width), tries[-1])


def _folded(heading: str, column: Sequence[str]) -> str:
    """The heading on several lines, no wider than its column."""
    words = [*heading.split(), *(line for text in column for line in text.splitlines())]
    return textwrap.fill(heading, max(map(len, words)))


def _table(
    rows: Sequence[Row], title: str, headings: Sequence[str], cells: Sequence[Sequence[str]], *, space: int = 1
) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    table.padding, table.collapse_padding, table.caption_justify = (0, space), True, "left"
    if any(row.get("leaks_test") for row in rows):
        table.caption = f"{_LEAK} sees the test set: not comparable, never ranked"
    table.add_column("method", no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right")
    for row, line in zip(rows, cells, strict=True):
        method = str(row.get("method", "–"))
        table.add_row(f"{method} {_LEAK}" if row.get("leaks_test") else method, *line)
    return table


def _figures(row: Row) -> list[str]:
    return [_breakable(cell(row, key)) for key, _ in COLUMNS]


def _breakable(text: str) -> str:
    return text.replace(" ±", "\n±")


def _percent(deviation: float, value: float) -> str:
    return f"{100 * deviation / value:.0f} %" if value else "0 %"


def _points(row: Row) -> str:
    """The difference in accuracy and its interval; a single seed has none."""
    if not row["same_world"]:
        return "another world:\nnot paired"
    mean, low, high = (row[f"avg_accuracy_difference{end}"] for end in ("", "_low", "_high"))
    return f"{_signed(mean, 1)}\n{'(one seed)' if low is None else f'[{_signed(low, 1)}, {_signed(high, 1)}]'}"


def _signed(value: float | None, decimals: int, unit: str = "") -> str:
    return "–" if value is None else f"{value:+.{decimals}f}{unit}".replace("-", "−")


def _causes(row: Row) -> str:
    """Joules by cause in one unit, that of their sum."""
    joules = [JOULES_PER_MJ * row[f"{cause}_energy_mj"] for cause in Cause]
    unit = joules_text(sum(joules)).split()[1]
    *others, link = (f"{spent / _JOULES[unit]:.2f}" for spent in joules)
    return f"{' + '.join(others)}\n+ {link} {unit}"


def _price(row: Row) -> str:
    """Joules to the target and how many seeds reached it."""
    if row["seeds_reached"] is None:
        return "–"
    price = "never" if row["joules_to_target"] is None else joules_text(row["joules_to_target"])
    return f"{price}\n({row['seeds_reached']} of {len(row['seeds'])})"
