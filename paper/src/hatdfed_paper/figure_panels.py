"""What the figures of the experiments have in common: colours of methods, four panels, words beside a spot."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

import hatdfed.report.style as st
from hatdfed_paper import figure_words as words
from hatdfed_paper.figure_data import OURS, Data
from hatdfed_paper.plus_plans import PLUS

WIDTH = 9.2  # inches
GREY = "#8A929B"  # of what is a bound and no rival
COLOURS = {"rnd": "#56B4E9", "d-psgd": "#0072B2", "dac": "#009E73", "sgp": "#CC79A7", OURS: "#D55E00", PLUS: "#882255"}
ENERGY, ACCURACY = "Total energy (MJ)", "Average test accuracy (%)"


def four(figure: Figure, data: Data, x: str, y: str) -> list[tuple[Axes, Data]]:
    """The panels of the four settings, on the same axes; λ grows downwards, ρ to the right."""
    grid = figure.subplots(2, 2, sharex=True, sharey=True)
    set_apart(figure)
    for axes, panel in zip(grid.flat, data["panels"], strict=True):
        st.frame(axes)
        axes.set_title(words.setting_name(panel["setting"]), loc="left", size=st.BODY, color=st.INK, family=st.FONT)
        st.name_axes(axes, x if axes in grid[1] else "", y if axes in grid[:, 0] else "")
        if not panel["lines"]:
            st.notice(axes, "not run")
    return list(zip(grid.flat, data["panels"], strict=True))


def set_apart(figure: Figure) -> None:
    """More room between panels."""
    engine = figure.get_layout_engine()
    if isinstance(engine, ConstrainedLayoutEngine):
        engine.set(hspace=0.06, wspace=0.03)


def legend_below(figure: Figure, handles: list[Any], names: list[str], columns: int = 4) -> None:
    """One legend for all panels, in a row at the foot."""
    font = {"family": st.FONT, "size": st.SMALL}
    place: dict[str, Any] = {"loc": "outside lower center", "ncols": columns}
    figure.legend(handles, names, frameon=False, prop=font, labelcolor=st.INK, **place)


def note(axes: Axes, text: str, at: tuple[float, float], **place: Any) -> None:
    """Words just above and beside a spot."""
    words_there = axes.annotate(
        text, at, (-3 if place.get("ha") == "right" else 3, 3), textcoords="offset points", **place
    )
    words_there.set(size=st.SMALL, family=st.FONT, color=st.INK, path_effects=st.HALO)
