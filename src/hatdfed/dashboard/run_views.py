"""One run as the charts need it: lists of numbers, and titles that say what a chart shows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import hatdfed.report.findings as fd
import hatdfed.report.formatting as fm
from hatdfed.core.metrics import LONGEST_NAME, MOST_METRICS
from hatdfed.report.formatting import keep_units_together
from hatdfed.report.run_data import CAUSES, LastLinks, Record, Vector, column, joules_by_cause
from hatdfed.runs.duration import time_unit
from hatdfed.runs.records.cleaning import number, text, whole
from hatdfed.runs.records.reading import RunReader, reading
from hatdfed.runs.records.small_files import read_settings
from hatdfed.runs.round_row import JOULES, RoundColumn, columns_in, format_metric

MAX_LINES = 12  # servers that are drawn one by one; more lines cannot be told apart
MAX_POINTS = 400  # of a curve; a longer run is thinned out, but always has its last round
MAX_LEDGER_LINES = 200
_MAX_LINKS = 20_000
_CURVES = ("avg", "std", "best", "worst")


def read_run_series(folder: Path, num_servers: int) -> dict[str, Any]:
    """Read every curve of the run page, with the titles of the charts."""
    with reading(folder / "run.sqlite") as reader:
        progress = reader.progress()
        rounds, first, last = (whole(progress[name]) for name in ("rounds", "first", "last"))
        if not rounds or first is None or last is None:
            return {"rounds": 0}
        step = _compute_step(rounds)
        points = reader.curves(first, last, step)
        drawn = {point["t"]: index for index, point in enumerate(points)}
        metrics = {name: reader.metrics(name, first, last, step) for name in list_metrics(folder)}
        lines = (
            _collect_server_lines(reader.servers(first, last, step), drawn, num_servers)
            if num_servers <= MAX_LINES
            else []
        )
    accuracy = {name: column(points, f"{name}_accuracy") for name in _CURVES}
    regret = {name: column(points, f"regret_{name}") for name in ("best_fixed", "best_each_round")}
    spent = joules_by_cause(points)
    total = np.sum(list(spent.values()), axis=0)
    return {
        "rounds": rounds,
        "first": first,
        "played": [t - first + 1 for t in drawn],
        "accuracy": {name: to_json_numbers(values) for name, values in accuracy.items()},
        "servers": [to_json_numbers(line) for line in lines],
        "joules": {cause: to_json_numbers(values) for cause, values in spent.items()},
        "total_joules": to_json_numbers(total),
        "regret": {name: to_json_numbers(values) for name, values in regret.items()},
        "causes": {name: {"cause": cause, "label": CAUSES[name]} for cause, name in JOULES.items() if name in spent},
        "more": [
            *(_make_own_chart(metric, points) for metric in columns_in("own").values()),
            *(_make_metric_chart(name, [found.get(t) for t in drawn]) for name, found in metrics.items()),
        ],
        "titles": _make_titles(rounds, accuracy["avg"], spent, total, regret["best_fixed"]),
    }


def _make_own_chart(metric: RoundColumn, points: Sequence[Record]) -> dict[str, Any]:
    """Make the data and the title of a figure that has a chart of its own."""
    values = column(points, metric.name)
    known = values[np.isfinite(values)]
    label = metric.label[:1].upper() + metric.label[1:]
    title = f"{label} ends at {metric.text(known[-1])}" if len(known) else f"{label} was not recorded"
    unit: str = metric.unit
    size = 1.0
    if unit == "s" and len(known):  # as the title writes them
        unit, size = time_unit(float(known.max()))
    return {
        "name": metric.name,
        "label": f"{label} ({unit})" if unit else label,
        "values": to_json_numbers(values / size),
        "title": keep_units_together(title),
    }


def list_metrics(folder: Path) -> list[str]:
    """List the metrics that the settings of a run name; each has a chart."""
    named = read_settings(folder).get("metrics")
    known = [name for name in named if isinstance(name, str) and name.isidentifier()] if isinstance(named, list) else []
    return [name for name in dict.fromkeys(known) if len(name) <= LONGEST_NAME][:MOST_METRICS]


def _make_metric_chart(name: str, values: Sequence[Any]) -> dict[str, Any]:
    """Make the data and the title of the chart of a metric."""
    numbers = [number(value) for value in values]
    known = [value for value in numbers if value is not None]
    title = f"{name} ends at {format_metric(known[-1])}" if known else f"{name} was not recorded"
    return {"name": f"metric-{name}", "label": name, "values": numbers, "title": title}


def _collect_server_lines(
    rows: Iterable[tuple[Any, Any, Any]], drawn: dict[int, int], num_servers: int
) -> list[Vector]:
    """Collect each server's accuracy in the rounds that are drawn; nan where none was reported."""
    lines = np.full((num_servers, len(drawn)), np.nan)
    for t, server, accuracy in _existing_servers(rows, num_servers):
        if t in drawn:
            lines[server, drawn[t]] = np.nan if accuracy is None else accuracy
    return list(lines)


def _make_titles(rounds: int, mean: Vector, spent: dict[str, Vector], total: Vector, regret: Vector) -> dict[str, str]:
    known = regret[np.isfinite(regret)]
    said = "No regret was recorded"
    if len(known):
        where = ", where it is known" if len(known) < len(regret) else ""
        said = f"Cumulative regret against the best fixed links is {fm.format_number(known[-1])}{where}"
    titles = {
        "accuracy": fd.accuracy_finding(mean, rounds),
        "energy": fd.energy_finding(spent),
        "both": fd.half_way_finding(total, mean),
        "regret": said,
    }
    return {name: keep_units_together(title) for name, title in titles.items()}


def read_round(folder: Path, t: int, num_servers: int) -> dict[str, Any] | None:
    """Read one round: its links, the servers' accuracies, the probability of every link, its ledger."""
    with reading(folder / "run.sqlite") as reader:
        progress = reader.progress()
        first, last = whole(progress["first"]), whole(progress["last"])
        if first is None or last is None or not first <= t <= last:
            return None
        return _read_round_at(reader, t, t - first + 1, num_servers)


def _read_round_at(reader: RunReader, t: int, played: int, num_servers: int) -> dict[str, Any]:
    links = [link for link in reader.links(t) if _is_inside(link, num_servers)]
    propensity = reader.propensity(t, num_servers)
    accuracy: list[float | None] = [None] * num_servers
    for _, server, value in _existing_servers(reader.servers(t, t), num_servers):
        accuracy[server] = value
    ledger = reader.ledger(t, MAX_LEDGER_LINES + 1)
    return {
        "t": t,
        "played": played,
        "accuracy": accuracy,
        "links": [_make_link(link) for link in links[:_MAX_LINKS]],
        "links_are_cut": len(links) > _MAX_LINKS,
        "propensity": None if propensity is None else _drop_diagonal(propensity),
        "ledger": [_make_ledger_line(line) for line in ledger[:MAX_LEDGER_LINES]],
        "ledger_is_cut": len(ledger) > MAX_LEDGER_LINES,
        "titles": {
            "links": _make_links_title(links, num_servers, played),
            "propensity": _make_propensity_title(propensity),
        },
    }


def _make_link(link: Record) -> dict[str, Any]:
    figures = {name: number(link[name]) for name in ("joules", "propensity", "utility", "importance")}
    return {"from": link["sender"], "to": link["receiver"], "delivered": bool(link["delivered"]), **figures}


def _make_ledger_line(line: Record) -> dict[str, Any]:
    ends = {name: whole(line.get(name)) for name in ("sender", "receiver")}
    figures = {name: number(line.get(name)) for name in ("bits", "joules")}
    return {"cause": text(line.get("cause"), 20), **ends, **figures, "source": text(line.get("source"), 20)}


def _make_links_title(links: list[dict[str, Any]], num_servers: int, played: int) -> str:
    receiver, sender = (np.array([link[end] for link in links], dtype=np.intp) for end in ("receiver", "sender"))
    delivered = np.array([bool(link["delivered"]) for link in links], dtype=np.bool_)
    return fd.links_finding(
        LastLinks(receiver, sender, delivered, column(links, "propensity"), None), num_servers, played
    )


def _make_propensity_title(propensity: Vector | None) -> str:
    """Say how far the probabilities have moved apart."""
    if propensity is None or len(propensity) < 2:
        return "The probabilities of this round were not kept"
    values = propensity[~np.eye(len(propensity), dtype=bool)]
    low, high = float(values.min()), float(values.max())
    if not math.isfinite(low + high):
        return "The probabilities of this round are not numbers"
    if high - low < 0.005:
        return f"Every link has the same probability, {high:.2f}"
    return f"Probability of a link lies between {low:.2f} and {high:.2f}"


def _drop_diagonal(matrix: Vector) -> list[list[float | None]]:
    return [
        [None if i == j else number(round(float(value), 4)) for j, value in enumerate(row)]
        for i, row in enumerate(matrix)
    ]


def _is_inside(link: Record, num_servers: int) -> bool:
    ends = (whole(link["receiver"]), whole(link["sender"]))
    return all(end is not None and 0 <= end < num_servers for end in ends)


def _existing_servers(
    rows: Iterable[tuple[Any, Any, Any]], num_servers: int
) -> Iterator[tuple[Any, int, float | None]]:
    """Yield the rows of servers that exist; an accuracy that is not a number becomes None."""
    for t, server, accuracy in rows:
        if (at := whole(server)) is not None and 0 <= at < num_servers:
            yield t, at, number(accuracy)


def select_rounds(length: int) -> list[int]:
    """Return the rounds to draw: all of them, or every n-th and the last."""
    kept = list(range(0, length, _compute_step(length)))
    return kept if not kept or kept[-1] == length - 1 else [*kept, length - 1]


def _compute_step(length: int) -> int:
    return max(1, -(-length // MAX_POINTS))


def to_json_numbers(values: Vector) -> list[float | None]:
    """Convert to numbers that JSON has, with the digits that a chart can show."""
    return [None if not math.isfinite(value) else float(f"{value:.6g}") for value in values]
