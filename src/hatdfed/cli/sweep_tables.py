"""What a sweep prints: its plan, its table, and what failed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

from hatdfed.cli.console import complain, joules_text, note, out
from hatdfed.sweeps.file import short_keys, value_text

Row = Mapping[str, Any]

ON_FRONT, LEAK = "★", "†"
_HEADINGS = {
    "validation_accuracy": "validation %",
    "avg_accuracy": "test %",
    "worst_accuracy": "worst test %",
    "total_joules": "energy",
    "link_joules": "link energy",
    "links_per_round": "links",
}
_SOUGHT = {
    "accuracy": "validation accuracy",
    "worst_accuracy": "validation accuracy of the worst server",
    "joules": "energy",
    "link_joules": "link energy",
}
_LEAST = ("worst_accuracy", "links_per_round", "link_joules", "avg_accuracy")  # what a narrow table does without
_MOST_REASONS = 20
_MOST_VARIED = 5  # settings with a column each


def sweep_table(rows: Sequence[Row], *, title: str, objectives: Sequence[str] = ("accuracy", "joules")) -> Table:
    """One row for each point; the half width of a 95 % interval behind every mean. Less on a narrow terminal."""
    columns = [name for name in _HEADINGS if name in rows[0]]
    kept = [[name for name in columns if name not in _LEAST[:count]] for count in range(len(_LEAST) + 1)]
    tries = [_table(rows, title, _caption(rows, objectives), some) for some in kept]
    at_will = out.options.update(width=1000)
    return next((table for table in tries if out.measure(table, options=at_will).maximum <= out.width), tries[-1])


def _table(rows: Sequence[Row], title: str, caption: str, columns: Sequence[str]) -> Table:
    table = Table(title=escape(title), title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    table.collapse_padding, table.caption, table.caption_justify = True, caption, "left"
    varied = short_keys(dict.fromkeys(key for row in rows for key in row["settings"]))
    in_one = not 0 < len(varied) <= _MOST_VARIED
    table.add_column("")
    for heading in ["point"] if in_one else varied.values():
        table.add_column(escape(heading), overflow="fold")
    for name in columns:
        table.add_column(_HEADINGS[name], justify="right", no_wrap=True)
    table.add_column("seeds", justify="right", no_wrap=True)
    for row in rows:
        mark = ON_FRONT if row["is_on_front"] else LEAK if row["leaks_test"] else ""
        seeds, missing = len(row["seeds"]), len(row["missing_seeds"])
        count = f"{seeds} of {seeds + missing}" if missing else str(seeds)
        point = [row["point"]] if in_one else [_value(row["settings"].get(key)) for key in varied]
        table.add_row(mark, *(escape(str(part)) for part in point), *(_cell(row, name) for name in columns), count)
    return table


def _value(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else value_text(value)


def _caption(rows: Sequence[Row], objectives: Sequence[str]) -> str:
    sought = " and ".join(_SOUGHT[name] for name in objectives)
    said = [f"{ON_FRONT} no other point is as good at {sought}"]
    if any(row["leaks_test"] for row in rows):
        said.append(f"{LEAK} sees the test set: not comparable, never ranked")
    return "\n".join(said)


def _cell(row: Row, name: str) -> str:
    mean, high = row[name], row[f"{name}_high"]
    if mean is None:
        return "–"
    if name == "links_per_round":
        return f"{mean:.1f}"
    if name.endswith("_joules"):
        spread = "" if high is None else f" ± {100 * (high - mean) / mean if mean else 0:.0f} %"
        return joules_text(mean) + spread
    return f"{mean:.1f}" if high is None else f"{mean:.1f} ± {high - mean:.1f}"


def tell_failures(failed: Mapping[str, str], go_on: str) -> None:
    """One line for each reason, with the runs that had it, and how to go on."""
    reasons = Counter(failed.values())
    for reason, count in reasons.most_common(_MOST_REASONS):
        names = [name for name, why in failed.items() if why == reason]
        more = f" and {count - 3} more" if count > 3 else ""
        complain(f"{', '.join(names[:3])}{more}: {reason}")
    if len(reasons) > _MOST_REASONS:
        note(f"{len(reasons) - _MOST_REASONS} other reasons are in summary.json.")
    complain(f"{len(failed)} {'run' if len(failed) == 1 else 'runs'} failed; all others are kept. {go_on}")
