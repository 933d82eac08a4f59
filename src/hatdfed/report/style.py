"""How every figure looks: colours, type scale, frame, and labels that keep out of each other's way.

Everything is set on the objects themselves. matplotlib's global settings stay untouched, so figures can be drawn in
threads and beside other people's plots.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator

from hatdfed.report import Vector, finite, limits

INK, MUTED, FAINT, PAPER = "#1f2429", "#646c75", "#dfe3e8", "#ffffff"
# Okabe and Ito's colours, which any kind of colour vision tells apart. Their yellow is too pale for lines on white:
# wine takes its place, and a dark grey that of black.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#882255", "#4D4D4D")
CAUSE_COLOURS = {"upload_joules": "#56B4E9", "training_joules": "#0072B2", "link_joules": "#D55E00"}
TITLE, BODY, SMALL = 13.0, 10.0, 8.5
FONT = "DejaVu Sans"  # comes with matplotlib, so a figure looks the same on every machine
DPI = 150
HALO = (withStroke(linewidth=2.5, foreground=PAPER),)  # around text, so that a line behind it does not cross it
STEPS = (1, 2, 5, 10)  # between ticks, times a power of ten
_MARGIN = 0.18  # inches
_DISTANCES = np.array([8.0, 17.0, 28.0, 42.0, 60.0])  # points from a label to its point, the near ones preferred


class EndLabel(NamedTuple):
    """A label to the right of the axes, for the line that ends at `value`."""

    value: float
    text: str
    strong: bool = False


def chart(width: float, height: float, title: str, subtitle: str) -> tuple[Figure, Axes]:
    """An empty figure of that many inches under a heading, with one pair of axes."""
    figure = Figure(figsize=(width, height), dpi=DPI, facecolor=PAPER, layout="constrained")
    FigureCanvasAgg(figure)
    top = _MARGIN
    for text, size, weight, colour in ((title, TITLE, "bold", INK), (subtitle, BODY - 0.5, "normal", MUTED)):
        letter = size / 72 * (0.61 if weight == "bold" else 0.53)  # inches, a little more than the average
        text = re.sub(r"(?<=\d) (?=[%kMJ±])", "\u00a0", text)  # a number is not parted from its unit
        for line in textwrap.wrap(text, int((width - 2 * _MARGIN) / letter)):
            place = (_MARGIN / width, 1 - top / height)
            figure.text(*place, line, size=size, weight=weight, color=colour, family=FONT, va="top", parse_math=False)
            top += 1.35 * size / 72
        top += 0.03
    rect = (0.1 / width, 0.1 / height, 1 - 0.2 / width, 1 - (top + 0.2) / height)
    figure.set_layout_engine("constrained", rect=rect)
    axes = figure.add_subplot(facecolor=PAPER)
    _frame(axes)
    return figure, axes


def _frame(axes: Axes) -> None:
    """Light lines across and no box, so that the data are the darkest thing on the page."""
    axes.tick_params(length=0, labelsize=SMALL, labelcolor=MUTED, labelfontfamily=FONT, pad=5)
    axes.grid(visible=True, color=FAINT, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(MUTED)


def save(figure: Figure, path: Path) -> Path:
    """Write the picture and say where."""
    canvas: Any = figure.canvas  # Agg, which comes without types
    canvas.print_png(path)  # draws once, `savefig` would do it twice
    return path


def name_axes(axes: Axes, x: str, y: str) -> None:
    """Write what the axes show, with units."""
    axes.set_xlabel(x, size=BODY, color=INK, family=FONT, labelpad=6)
    axes.set_ylabel(y, size=BODY, color=INK, family=FONT, labelpad=6)


def colour_bar(figure: Figure, axes: Axes, scale: ScalarMappable, meaning: str) -> None:
    """A slim bar to the right of the axes that says what their colours mean."""
    bar = figure.colorbar(scale, ax=axes, shrink=0.6, aspect=28, pad=0.03)
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=0, labelsize=SMALL, labelcolor=MUTED, labelfontfamily=FONT)
    bar.set_label(meaning, size=BODY, color=INK, family=FONT, labelpad=8)


def notice(axes: Axes, text: str) -> None:
    """Say in the middle of the axes why there is little to see."""
    note = axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center")
    note.set(size=BODY, color=MUTED, family=FONT, bbox={"facecolor": PAPER, "edgecolor": "none"})


def percent_axis(axes: Axes, values: Vector) -> None:
    """A y axis around these accuracies that does not run beyond 0 and 100 by more than a line's width."""
    low, high = limits(values, least=2.0) if len(finite(values)) else (0.0, 100.0)
    axes.set_ylim(max(low, -1.0), min(high, 101.0))
    axes.yaxis.set_major_locator(MaxNLocator(7, steps=STEPS))


def round_axis(axes: Axes, first: float, last: float) -> None:
    """An x axis in whole rounds that ends where the data end."""
    axes.set_xlim(*((first, last) if last > first else (first - 0.5, last + 0.5)))
    axes.xaxis.set_major_locator(MaxNLocator(9, steps=STEPS, integer=True, min_n_ticks=1))


def _lay_out(figure: Figure) -> None:
    """Place the axes as they will be placed when the figure is drawn, at half the cost of drawing it."""
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)


def spread(wanted: Vector, gap: float, highest: float) -> Vector:
    """Places from 0 to `highest`, `gap` apart or more, in the same order, as near to the wanted ones as can be."""
    order = np.argsort(wanted, kind="stable")
    steps = gap * np.arange(len(wanted))
    blocks: list[tuple[float, int]] = []  # mean and size; neighbours out of order are pooled
    for value in wanted[order] - steps:
        mean, size = float(value), 1
        while blocks and blocks[-1][0] > mean:
            other, count = blocks.pop()
            mean, size = (mean * size + other * count) / (size + count), size + count
        blocks.append((mean, size))
    level = np.repeat([mean for mean, _ in blocks], [size for _, size in blocks])
    placed = np.empty_like(wanted)
    placed[order] = np.clip(level, 0, max(highest - gap * (len(wanted) - 1), 0)) + steps
    return placed


def end_labels(figure: Figure, axes: Axes, labels: Iterable[EndLabel]) -> None:
    """Name lines at their right end, moved apart where they end close together."""
    shown = [label for label in labels if np.isfinite(label.value)]
    _lay_out(figure)  # the height of the axes is known from here on
    low, high = axes.get_ylim()
    height = axes.bbox.height * 72 / DPI
    wanted = (np.array([label.value for label in shown]) - low) / (high - low) * height
    leader = {"arrowstyle": "-", "color": MUTED, "linewidth": 0.5, "relpos": (0, 0.5), "shrinkB": 2}
    for label, at, to in zip(shown, wanted, spread(wanted, 1.45 * SMALL, height), strict=True):
        note = axes.annotate(label.text, (1, label.value), (20, to - at), textcoords="offset points", arrowprops=leader)
        note.xycoords = ("axes fraction", "data")
        note.set(size=SMALL, family=FONT, parse_math=False, verticalalignment="center", annotation_clip=False)
        note.set(weight="bold" if label.strong else "normal", color=INK if label.strong else MUTED)


def along(corners: Vector) -> Vector:  # [c, 2] -> [many, 2]
    """Points close together on the line through these corners, for labels to keep clear of."""
    if not len(corners):
        return corners
    place = np.linspace(0, len(corners) - 1, max(400, 2 * len(corners)))
    return np.stack([np.interp(place, np.arange(len(corners)), axis) for axis in corners.T], axis=1)


def place_labels(figure: Figure, axes: Axes, points: Vector, texts: Sequence[str], avoid: Vector) -> None:
    """Name `points` so that no label covers another one, a point or a line through `avoid` ([m, 2], like the data)."""
    _lay_out(figure)
    figure.set_layout_engine("none")  # pixels stay what they are from here on
    scale = 72 / DPI  # points a pixel
    anchors = axes.transData.transform(points) * scale
    busy = np.concatenate([anchors, axes.transData.transform(avoid) * scale])
    edges = np.concatenate([axes.bbox.min, axes.bbox.max]) * scale
    taken = np.empty((0, 4))
    for anchor, point, text in zip(anchors, points, texts, strict=True):
        note = axes.annotate(text, point, (0, 0), textcoords="offset points", ha="center", va="center")
        note.set(size=SMALL, family=FONT, color=INK, parse_math=False, path_effects=HALO)
        extent = note.get_window_extent()
        box, is_far = _best_box(anchor, np.array([extent.width, extent.height]) * scale + 3, taken, busy, edges)
        note.set_position((box[:2] + box[2:]) / 2 - anchor)
        if is_far:
            leader = {"arrowstyle": "-", "color": MUTED, "linewidth": 0.6, "shrinkA": 0, "shrinkB": 4}
            near = np.clip(anchor, box[:2], box[2:])  # the spot of the label that is next to the point
            axes.annotate("", point, near - anchor, textcoords="offset points", arrowprops=leader)
            busy = np.concatenate([busy, np.linspace(anchor, near, 9)])
        taken = np.vstack([taken, box])


def _best_box(anchor: Vector, size: Vector, taken: Vector, busy: Vector, edges: Vector) -> tuple[Vector, bool]:
    """Where a label of this size goes, as left, bottom, right, top; and whether it needs a line to its point."""
    angle = np.arange(16) * np.pi / 8
    direction = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    centre = (anchor + direction * (_DISTANCES[:, None, None] + size / 2)).reshape(-1, 2)
    low, high = centre - size / 2, centre + size / 2  # [c, 2] each
    overlaps = ((low[:, None] < taken[:, 2:]) & (high[:, None] > taken[:, :2])).all(axis=2).sum(axis=1)
    covers = ((low[:, None] < busy) & (high[:, None] > busy)).all(axis=2).sum(axis=1)
    leaves = (low < edges[:2]).any(axis=1) | (high > edges[2:]).any(axis=1)
    distance = np.repeat(_DISTANCES, len(angle))
    best = int(np.argmin(1000 * overlaps + 1000 * leaves + 20 * covers + distance))
    return np.concatenate([low[best], high[best]]), bool(distance[best] > _DISTANCES[0])
