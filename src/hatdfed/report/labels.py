"""Labels in figures, placed so that they do not overlap."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hatdfed.report.run_data import Vector
from hatdfed.report.style import DPI, FONT, HALO, INK, MUTED, SMALL, fold, settle, style_of

_DISTANCES = np.array([8.0, 17.0, 28.0, 42.0, 60.0])  # points from a label to its point; near ones are preferred
_WIDEST, _MOST_LINES = 30, 4  # letters and lines of a label next to its point
_RING = 3.0  # points by which labels of ringed points are further away


class EndLabel(NamedTuple):
    """A label to the right of the axes, for the line that ends at `value`."""

    value: float
    text: str
    strong: bool = False


def spread(wanted: Vector, gap: float, highest: float) -> Vector:
    """Compute positions from 0 to `highest`, at least `gap` apart, in order and as near as possible to `wanted`."""
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
    """Label lines at their right end, moved apart where they end close together."""
    shown = [label for label in labels if np.isfinite(label.value)]
    size = style_of(figure).scale * SMALL
    settle(figure)  # the height of the axes is known from here on
    low, high = axes.get_ylim()
    height = axes.bbox.height * 72 / DPI
    wanted = (np.array([label.value for label in shown]) - low) / (high - low) * height
    leader = {"arrowstyle": "-", "color": MUTED, "linewidth": 0.5, "relpos": (0, 0.5), "shrinkB": 2}
    for label, at, to in zip(shown, wanted, spread(wanted, 1.45 * size, height), strict=True):
        note = axes.annotate(label.text, (1, label.value), (20, to - at), textcoords="offset points", arrowprops=leader)
        note.xycoords = ("axes fraction", "data")
        note.set(size=size, family=FONT, parse_math=False, verticalalignment="center", annotation_clip=False)
        note.set(weight="bold" if label.strong else "normal", color=INK if label.strong else MUTED)


def along(corners: Vector) -> Vector:  # [c, 2] -> [many, 2]
    """Compute closely spaced points on the line through these corners, for labels to avoid."""
    if not len(corners):
        return corners
    place = np.linspace(0, len(corners) - 1, max(400, 2 * len(corners)))
    return np.stack([np.interp(place, np.arange(len(corners)), axis) for axis in corners.T], axis=1)


def place_labels(
    figure: Figure, axes: Axes, points: Vector, texts: Sequence[str], avoid: Vector, ringed: Collection[int] = ()
) -> None:
    """Label `points` so that no label covers another one, a point, or `avoid` ([m, 2], in data coordinates).

    Labels of points that are `ringed` are as far from the ring as others from their point.
    """
    settle(figure)
    figure.set_layout_engine("none")  # pixels stay what they are from here on
    scale = 72 / DPI  # points a pixel
    texts = [fold(text, _WIDEST, _MOST_LINES) for text in texts]
    anchors = axes.transData.transform(points) * scale
    busy = np.concatenate([anchors, axes.transData.transform(avoid) * scale])
    edges = np.concatenate([axes.bbox.min, axes.bbox.max]) * scale
    taken = np.empty((0, 4))
    for index, (anchor, point, text) in enumerate(zip(anchors, points, texts, strict=True)):
        note = axes.annotate(text, point, (0, 0), textcoords="offset points", ha="center", va="center")
        note.set(size=style_of(figure).scale * SMALL, family=FONT, color=INK, parse_math=False, path_effects=HALO)
        extent = note.get_window_extent()
        size = np.array([extent.width, extent.height]) * scale + 3
        box, is_far = _best_box(anchor, size, taken, busy, edges, _DISTANCES + _RING * (index in ringed))
        note.set_position((box[:2] + box[2:]) / 2 - anchor)
        if is_far:
            leader = {"arrowstyle": "-", "color": MUTED, "linewidth": 0.6, "shrinkA": 0, "shrinkB": 4}
            near = np.clip(anchor, box[:2], box[2:])  # the spot of the label that is next to the point
            axes.annotate("", point, near - anchor, textcoords="offset points", arrowprops=leader)
            busy = np.concatenate([busy, np.linspace(anchor, near, 9)])
        taken = np.vstack([taken, box])


def _best_box(
    anchor: Vector, size: Vector, taken: Vector, busy: Vector, edges: Vector, distances: Vector
) -> tuple[Vector, bool]:
    """Find the box (left, bottom, right, top) for a label, and whether it needs a line to its point."""
    angle = np.arange(16) * np.pi / 8
    direction = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    centre = (anchor + direction * (distances[:, None, None] + size / 2)).reshape(-1, 2)
    low, high = centre - size / 2, centre + size / 2  # [c, 2] each
    overlaps = ((low[:, None] < taken[:, 2:]) & (high[:, None] > taken[:, :2])).all(axis=2).sum(axis=1)
    covers = ((low[:, None] < busy) & (high[:, None] > busy)).all(axis=2).sum(axis=1)
    leaves = (low < edges[:2]).any(axis=1) | (high > edges[2:]).any(axis=1)
    distance = np.repeat(distances, len(angle))
    best = int(np.argmin(1000 * overlaps + 1000 * leaves + 20 * covers + distance))
    return np.concatenate([low[best], high[best]]), bool(distance[best] > distances[0])
