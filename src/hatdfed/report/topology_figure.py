"""Figure of a topology: servers on a circle with arrows between them, or a matrix for many servers."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.patches import FancyArrowPatch

import hatdfed.report.findings as fd
import hatdfed.report.formatting as fm
import hatdfed.report.run_data as rp
import hatdfed.report.style as st
from hatdfed.report.run_data import LastLinks, RunData, Vector
from hatdfed.report.style import FigureStyle, StyledFigure

_MOST_NODES = 40  # servers; more arrows could not be told apart
_MATRIX_POINTS = 400.0  # about the side of the matrix
_LEAST_POINTS = 1.2  # of a link's mark, so that it is seen among thousands of servers


class _Coloured(NamedTuple):
    """The links of the last round, coloured by joules or, if these are unknown, by probability."""

    links: LastLinks
    value: Vector
    scale: ScalarMappable
    meaning: str


def topology_figure(run: RunData, style: FigureStyle = st.SCREEN) -> StyledFigure:
    """Draw the links of the last round as arrows between servers on a circle, or as a matrix for many servers."""
    coloured = _colour(rp.last_links(run))
    title = fd.links_finding(coloured.links, run.num_servers, rp.rounds_played(run)[-1])
    figure, axes = (_matrix if run.num_servers > _MOST_NODES else _circle)(run, coloured, title, style)
    if len(coloured.value):
        st.colour_bar(figure, axes, coloured.scale, coloured.meaning)
    else:
        st.notice(axes, "no links in this round")
    return figure


def _colour(links: LastLinks) -> _Coloured:
    value, meaning, name = links.propensity, "Probability of being drawn", "PuBu"
    if links.joules is not None:
        unit = fm.energy_unit(links.joules.max(initial=0.0))
        value, meaning, name = links.joules / unit.joules, f"Energy of the link ({unit.symbol})", "YlOrBr"
    # The palest third of a map would vanish on white paper.
    shades = [tuple(shade) for shade in colormaps[name](np.linspace(0.35, 1, 64))]
    ramp = LinearSegmentedColormap.from_list(name, shades).with_extremes(bad=st.FAINT)
    numbers = np.unique(rp.finite(value))
    low, high = (numbers[0], numbers[-1]) if len(numbers) > 1 else rp.limits(numbers, least=1.0)
    return _Coloured(links, value, ScalarMappable(Normalize(low, high), ramp), meaning)


def _circle(run: RunData, coloured: _Coloured, title: str, style: FigureStyle) -> tuple[StyledFigure, Axes]:
    note = "Beside each server, and as its size: validation accuracy\u00a0(%)."
    note += " Arrows go from sender to receiver." if len(coloured.value) else ""
    note += "" if coloured.links.delivered.all() else " Dashed: not delivered."
    side = 7.6 if run.num_servers <= 16 else 9.4
    tall = 1.2 if run.num_servers > 2 else 0.5  # two servers stand side by side
    figure, axes = st.chart(side, side * (0.25 + 0.55 * tall), title, f"{run.title}. {note}", style)
    side = min(figure.get_figwidth(), figure.get_figheight() / (0.25 + 0.55 * tall))
    axes.set(aspect="equal", xlim=(-1.2, 1.2), ylim=(-tall, tall))
    axes.set_axis_off()
    turn = np.arange(run.num_servers) / run.num_servers + (0.75 if run.num_servers == 2 else 0)
    place = np.stack([np.sin(2 * np.pi * turn), np.cos(2 * np.pi * turn)], axis=1)  # clockwise from the top
    accuracy = rp.server_accuracy(run)[:, -1]
    diameter = _diameters(accuracy, widest=_find_widest(run.num_servers, side, style))
    _arrows(axes, coloured, place, diameter)
    _servers(axes, place, diameter, accuracy)
    return figure, axes


def _arrows(axes: Axes, coloured: _Coloured, place: Vector, diameter: Vector) -> None:
    width = float(np.clip(90 / max(len(coloured.value), 1), 0.5, 1.6))  # thinner where there are many
    for link in np.argsort(coloured.value):  # the most expensive ones on top
        sender, receiver = coloured.links.sender[link], coloured.links.receiver[link]
        arrow = FancyArrowPatch(
            tuple(place[sender]),
            tuple(place[receiver]),
            arrowstyle=f"-|>,head_length={2 + 3 * width},head_width={1 + 1.4 * width}",
            connectionstyle="arc3,rad=0.14",  # always to the same side of the way, so opposite links do not meet
            shrinkA=diameter[sender] / 2 + 1,
            shrinkB=diameter[receiver] / 2 + 1,
            color=coloured.scale.to_rgba(coloured.value[link]),
            linewidth=width,
            alpha=0.9 if width > 0.5 else 0.6,
            in_layout=False,  # inside the axes anyway, and slow to measure
            linestyle="-" if coloured.links.delivered[link] else (0, (3, 2)),
        )
        axes.add_patch(arrow)


def _servers(axes: Axes, place: Vector, diameter: Vector, accuracy: Vector) -> None:
    ring = np.linspace(0, 2 * np.pi, 200 if len(place) > 2 else 0)
    axes.plot(np.sin(ring), np.cos(ring), color=st.FAINT, linewidth=0.8, zorder=0)
    dots = axes.scatter(
        place[:, 0], place[:, 1], s=diameter**2, color="#EAF1F7", edgecolor=st.INK, linewidth=0.9, zorder=3
    )
    dots.set_clip_on(False)  # so that the highest one is drawn completely
    for server, at in enumerate(place):
        value = f"{accuracy[server]:.1f}" if np.isfinite(accuracy[server]) else "–"
        beyond = at * (diameter[server] / 2 + 7 + 8 * abs(at[0]))  # text is wider than high
        name = axes.annotate(str(server), at, ha="center", va="center", weight="bold", color=st.INK, zorder=4)
        note = axes.annotate(value, at, beyond, textcoords="offset points", ha="center", va="center", color=st.MUTED)
        for text in (name, note):
            text.set(family=st.FONT, size=st.style_of(axes).scale * (st.SMALL if len(place) <= 20 else 7))


def _find_widest(num_servers: int, side: float, style: FigureStyle) -> float:  # points
    """Compute the diameter of the largest server: room for its number, and for all servers on the circle."""
    return max(min(36.0, 4.74 * side, 100 * (side - 2.2) / num_servers), 6.0 * style.scale)


def _diameters(accuracy: Vector, *, widest: float) -> Vector:  # points
    """Compute diameters from 70 % to 100 % of `widest`, from the least to the most accurate server."""
    low, high = rp.limits(accuracy, least=1.0)
    return widest * np.sqrt(0.5 + 0.5 * np.nan_to_num((accuracy - low) / (high - low)))


def _matrix(run: RunData, coloured: _Coloured, title: str, style: FigureStyle) -> tuple[StyledFigure, Axes]:
    """Draw a square for each link, without an N × N array: there may be millions of pairs of servers."""
    links, lost = coloured.links, ~coloured.links.delivered
    note = "" if links.delivered.all() else " Crossed out: not delivered."
    figure, axes = st.chart(8.2, 7.6, title, f"{run.title}.{note}", style)
    axes.set(
        aspect="equal", xlim=(-0.5, run.num_servers - 0.5), ylim=(run.num_servers - 0.5, -0.5), facecolor="#F3F5F7"
    )
    cell = max(_MATRIX_POINTS * figure.get_figwidth() / 8.2 / run.num_servers, _LEAST_POINTS)
    colours = coloured.scale.to_rgba(coloured.value)
    axes.scatter(links.sender, links.receiver, marker="s", s=cell**2, color=colours, linewidth=0, zorder=2)
    axes.scatter(
        links.sender[lost], links.receiver[lost], marker="x", s=(cell / 2) ** 2, color=st.INK, linewidth=0.8, zorder=3
    )
    axes.grid(visible=False)
    axes.spines["bottom"].set_visible(False)
    st.name_axes(axes, "Sending server", "Receiving server")
    return figure, axes
