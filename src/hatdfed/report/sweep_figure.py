"""Figure of a sweep: accuracy against energy, a mark for each point, and the Pareto front."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

import hatdfed.report.formatting as fm
import hatdfed.report.labels as lb
import hatdfed.report.run_data as rp
import hatdfed.report.style as st
from hatdfed.report.looks import find_looks
from hatdfed.report.run_data import Vector
from hatdfed.report.style import FigureStyle, StyledFigure

SummaryRow = Mapping[str, Any]

_NAMES = {
    "validation_accuracy": "Validation accuracy (%)",
    "validation_worst": "Validation accuracy of the worst server (%)",
    "total_joules": "Total energy",
    "link_joules": "Energy of links",
}
_MOST_LABELS = 12


def sweep_figure(
    rows: Sequence[SummaryRow], worlds: Sequence[str], x: str, y: str, style: FigureStyle = st.SCREEN
) -> StyledFigure:
    """Rows with figures in columns `x` (joules) and `y` (percent), and their standard deviations over seeds.

    Only rows of one world are held against each other, so each of the `worlds` [R] has stairs of its own.
    """
    spots = np.array([(row[x], row[y]) for row in rows], dtype=np.float64)  # [R, 2]
    fronts = _fronts(spots, worlds)
    front = [index for one in fronts for index in one]
    unit = fm.energy_unit(float(spots[:, 0].max()))
    spots[:, 0] /= unit.joules
    figure, axes = st.chart(9.2, 5.8, _title(rows, front), _note(rows), style)
    st.name_axes(axes, f"{_NAMES[x]} ({unit.symbol})", _NAMES[y])
    # Bars of all points would hide the points.
    spread = [_spread(row, x, y, unit.joules) if index in front else (0.0, 0.0) for index, row in enumerate(rows)]
    groups = _colours(rows)
    for index, spot in enumerate(spots):
        _mark(axes, spot, spread[index], groups[index][1])
    ring: dict[str, Any] = {"marker": "o", "linestyle": "", "markersize": 14, "fillstyle": "none"}
    axes.plot(*spots[front].T, color=st.INK, markeredgewidth=1.1, zorder=2, **ring)
    arms = np.array(spread)  # [R, 2]
    ends = np.concatenate([spots, spots - arms, spots + arms])
    left, right = rp.limits(ends[:, 0], least=0.1 * float(spots[:, 0].max()) or 1.0)
    axes.set_xlim(max(left, -0.02 * right), right)
    st.percent_axis(axes, ends[:, 1])
    stairs = [_stairs(spots[one], right) for one in fronts]
    for line in stairs:
        axes.plot(*line.T, color="#9AA3AD", linewidth=1.1, zorder=1)
    _legend(axes, groups)
    named = front[:_MOST_LABELS]
    along = [lb.along(line) for line in stairs]
    busy = np.concatenate([ends, *along, *(_arms(spots[index], arms[index]) for index in named)])
    words = [_words(rows[index]) for index in named]
    lb.place_labels(figure, axes, spots[named], words, busy, range(len(named)))
    return figure


def _fronts(spots: Vector, worlds: Sequence[str]) -> list[list[int]]:
    """Find the Pareto front of each world, from the cheapest row to the best."""
    members = [[index for index, its in enumerate(worlds) if its == world] for world in dict.fromkeys(worlds)]
    return [[rows[index] for index in rp.pareto_front(spots[rows])] for rows in members]


def _title(rows: Sequence[SummaryRow], front: Sequence[int]) -> str:
    if len(rows) == 1:
        return "One point, so nothing to choose from"
    are = "is" if len(front) == 1 else "are"
    return f"{len(front)} of {len(rows)} points {are} on the front: no other is better at one and worse at none"


def _note(rows: Sequence[SummaryRow]) -> str:
    counts = sorted({len(row["seeds"]) for row in rows})
    seeds = f"{counts[0]} seeds" if len(counts) == 1 else f"{counts[0]} to {counts[-1]} seeds"
    if counts == [1]:
        return "After the last round, one seed each. Rings: on the front."
    has_spread = any(row.get("total_joules_sd") is not None for row in rows)
    bars = ", where bars show ± 1 standard deviation over seeds" if has_spread else ""
    return f"After the last round, mean over {seeds}. Rings: on the front{bars}."


def _spread(row: SummaryRow, x: str, y: str, unit: float) -> tuple[float, float]:
    """Return both standard deviations; 0 for one seed, and in tables before 0.2, which have none."""
    return (row.get(f"{x}_sd") or 0.0) / unit, row.get(f"{y}_sd") or 0.0


def _mark(axes: Axes, spot: Vector, spread: tuple[float, float], colour: str) -> None:
    look: dict[str, Any] = {"color": colour, "marker": "o", "linestyle": "", "markersize": 6.5}
    x, y = spot
    axes.errorbar(x, y, spread[1], spread[0], elinewidth=0.8, ecolor=(colour, 0.4), zorder=3, **look)


def _colours(rows: Sequence[SummaryRow]) -> list[tuple[str, str]]:
    """Colour points by a setting with few values (preferably names, not numbers); one colour if there is none."""
    keys = list(dict.fromkeys(key for row in rows for key in row["settings"]))
    columns = {key: [row["settings"].get(key) for row in rows] for key in keys}
    for key in sorted(keys, key=lambda key: not all(isinstance(value, str) for value in columns[key])):
        values = sorted({_value(value) for value in columns[key]}, key=lambda text: (len(text), text))
        if 1 < len(values) <= len(st.PALETTE):
            name = {value: value if key == "method" else f"{key.rpartition('.')[2]} {value}" for value in values}
            looks = find_looks(values) if key == "method" else range(len(values))
            colour = {value: st.PALETTE[look % len(st.PALETTE)] for value, look in zip(values, looks, strict=True)}
            return [(name[_value(value)], colour[_value(value)]) for value in columns[key]]
    return [("", st.PALETTE[0])] * len(rows)


def _legend(axes: Axes, groups: Sequence[tuple[str, str]]) -> None:
    found = dict(sorted({(name, colour) for name, colour in groups if name}, key=lambda one: st.PALETTE.index(one[1])))
    handles = [Line2D([], [], color=colour, marker="o", linestyle="") for colour in found.values()]
    if handles:
        st.legend(axes, handles, list(found), loc="upper left", bbox_to_anchor=(1.01, 1.02))


def _stairs(front: Vector, right: float) -> Vector:  # [F, 2] -> [2F, 2]
    """Compute the corners of the front, up to the right edge."""
    x = np.append(np.repeat(front[:, 0], 2)[1:], right)
    return np.stack([x, np.repeat(front[:, 1], 2)], axis=1)


def _arms(spot: Vector, spread: Vector) -> Vector:  # [2], [2] -> [many, 2]
    """Compute points along the error bars of a mark, for labels to avoid."""
    share = np.linspace(-1, 1, 15)[:, None]
    return np.concatenate([spot + share * spread * axis for axis in ((1, 0), (0, 1))])


def _words(row: SummaryRow) -> str:
    """Format the varied settings of a point."""
    said = [f"{key.rpartition('.')[2]} {_value(value)}" for key, value in row["settings"].items() if key != "method"]
    method = row["settings"].get("method")
    return ", ".join([*([str(method)] if method else []), *said]) or str(row["point"])


def _value(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
