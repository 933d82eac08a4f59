"""Short descriptions of results, as text and as HTML for notebooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from hatdfed.setup.config import Config

_COLUMNS = {
    "method": "method",
    "avg_accuracy": "accuracy (%)",
    "worst_accuracy": "worst server (%)",
    "total_energy_megajoules": "energy",
    "link_energy_megajoules": "energy of links",
    "links_per_round": "links per round",
}
_MOST_ROWS = 30


def format_energy(joules: float) -> str:
    """Format an amount of energy in a suitable unit.

    >>> format_energy(8419.2), format_energy(2.3e6)
    ('8.42 kJ', '2.30 MJ')
    """
    for size, unit in ((1e6, "MJ"), (1e3, "kJ")):
        if abs(joules) >= size:
            return f"{joules / size:.2f} {unit}"
    return f"{joules:.1f} J"


def describe_run(config: Config, summary: Mapping[str, Any]) -> str:
    """A run in one line: what it is, and what it came to."""
    what = f"{config.method} on {config.dataset}, {config.servers} servers, seed {config.seed}"
    if "avg_accuracy" not in summary:
        return f"{what}, not finished"
    energy = format_energy(1e6 * summary["total_energy_megajoules"])
    ended = f" (of {config.rounds}, ended by {summary['stopped_by']})" if "stopped_by" in summary else ""
    return f"{what}, {summary['rounds']} rounds{ended}: accuracy {summary['avg_accuracy']:.1f} %, {energy}"


def describe_comparison(config: Config, methods: Sequence[str], seeds: int) -> str:
    """A comparison in one line."""
    what = f"{config.dataset}, {config.servers} servers, {config.rounds} rounds, {seeds} seed{'s' if seeds > 1 else ''}"
    return f"{', '.join(methods)} on {what}"


def format_table(rows: Sequence[Mapping[str, Any]], caption: str, columns: Mapping[str, str] = _COLUMNS) -> str:
    """An HTML table with a caption; columns that no row has are left out."""
    shown = {name: label for name, label in columns.items() if any(row.get(name) is not None for row in rows)}
    head = "".join(f"<th>{escape(label)}</th>" for label in shown.values())
    body = "".join(
        f"<tr>{''.join(f'<td>{_format_cell(name, row)}</td>' for name in shown)}</tr>" for row in rows[:_MOST_ROWS]
    )
    more = f"<p>{len(rows) - _MOST_ROWS} more rows</p>" if len(rows) > _MOST_ROWS else ""
    inside = f"<caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    return f"<table>{inside}</table>{more}"


def _format_cell(name: str, row: Mapping[str, Any]) -> str:
    value, deviation = row.get(name), row.get(f"{name}_sd")
    if value is None:
        return "–"
    if name.endswith(("_megajoules", "_joules")):
        energy = format_energy(value * (1e6 if name.endswith("_megajoules") else 1))
        return f"{energy} ± {100 * deviation / value:.0f} % (sd)" if deviation is not None and value else energy
    if not isinstance(value, float):
        return escape(str(value))
    return f"{value:.1f}" if deviation is None else f"{value:.1f} ± {deviation:.1f} (sd)"
