"""What drawing the figures of the experiments has in common: four panels, lines of a sweep, words beside a spot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator

import hatdfed.report.style as st
from hatdfed.report.run_data import Vector
from hatdfed_paper.figure_parts import Data, panel_name

_LEVELS = (("#0072B2", "o"), ("#D55E00", "s"), ("#009E73", "^"), ("#882255", "D"))
_ASIDE = 0.006  # in shares, between lines that would cover each other


def four_panels(figure: Figure, data: Data, x: str, y: str) -> list[tuple[Axes, Data]]:
    """The panels of the four settings, on the same axes; λ grows downwards, ρ to the right."""
    grid = figure.subplots(2, 2, sharex=True, sharey=True)
    set_apart(figure)
    for axes, panel in zip(grid.flat, data["panels"], strict=True):
        st.frame(axes)
        axes.set_title(panel_name(panel["setting"]), loc="left", size=st.BODY, color=st.INK, family=st.FONT)
        st.name_axes(axes, x if axes in grid[1] else "", y if axes in grid[:, 0] else "")
        if not panel["lines"]:
            st.notice(axes, "not run")
    return list(zip(grid.flat, data["panels"], strict=True))


def set_apart(figure: Figure) -> None:
    """Leave more room between panels."""
    engine = figure.get_layout_engine()
    if isinstance(engine, ConstrainedLayoutEngine):
        engine.set(hspace=0.06, wspace=0.03)


def legend_below(figure: Figure, handles: list[Any], names: list[str], columns: int = 4) -> None:
    """One legend for all panels, in a row at the foot."""
    font = {"family": st.FONT, "size": st.SMALL}
    place: dict[str, Any] = {"loc": "outside lower center", "ncols": columns}
    figure.legend(handles, names, frameon=False, prop=font, labelcolor=st.INK, **place)


def note(axes: Axes, text: str, at: tuple[float, float], **place: Any) -> None:
    """Write words just above and beside a spot."""
    words_there = axes.annotate(
        text, at, (-3 if place.get("ha") == "right" else 3, 3), textcoords="offset points", **place
    )
    words_there.set(size=st.SMALL, family=st.FONT, color=st.INK, path_effects=st.HALO)


def draw_sweep(axes: Axes, lines: Sequence[Data], name: str) -> list[Any]:
    """A line with whiskers for each of these, moved a little apart; published figures in the same colour."""
    handles = []
    for index, line in enumerate(lines):
        colour, marker = _LEVELS[index]
        aside = _ASIDE * (index - (len(lines) - 1) / 2)
        look: dict[str, Any] = {"color": colour, "marker": marker, "markersize": 5.5}
        x, error = np.array(line["x"]) + aside, line[f"{name}_error"]
        axes.errorbar(x, line[name], error, linestyle="", elinewidth=1.0, zorder=3, **look)
        # Energies of two settings can be the same; lines moved apart would then look like different ones.
        axes.plot(line["x"] if name == "energy" else x, line[name], color=colour, linewidth=1.5, zorder=2)
        handles.append(Line2D([], [], linewidth=1.5, **look))
        if name == "energy" and line.get("published_x"):
            x, hollow = np.array(line["published_x"]) + aside, {**look, "markersize": 7.5, "fillstyle": "none"}
            axes.plot(x, line["published_energy"], linestyle="", zorder=4, **hollow)
    axes.xaxis.set_major_locator(FixedLocator(sorted({x for line in lines for x in line["x"]})))
    return handles


def whisker_ends(lines: Sequence[Data], name: str) -> Vector:
    """All ends of the whiskers that `draw_sweep` draws."""
    ends = [np.array(line[name]) + side * np.array(line[f"{name}_error"]) for line in lines for side in (-1, 1)]
    return np.concatenate(ends)
