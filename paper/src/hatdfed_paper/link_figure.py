"""The picture of what it brings to choose links: accuracy over link energy, in every regime, beside random links."""

from __future__ import annotations

import textwrap
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

import hatdfed.report.style as st
from hatdfed_paper import figure_words as words
from hatdfed_paper.figure_data import Data, lines_of
from hatdfed_paper.figure_panels import ACCURACY, COLOURS, GREY, WIDTH, legend_below, set_apart
from hatdfed_paper.link_regimes import LEARNED
from hatdfed_paper.plus_figure_data import RANDOM
from hatdfed_paper.plus_plans import PLUS

_LOOKS: dict[str, dict[str, Any]] = {
    RANDOM: {"color": GREY, "marker": "o", "markersize": 5.0, "linewidth": 1.4},
    LEARNED: {"color": COLOURS["d-psgd"], "marker": "D", "markersize": 5.5, "linestyle": "", "fillstyle": "none"},
    PLUS: {"color": COLOURS[PLUS], "marker": "*", "markersize": 12.0, "linestyle": "", "zorder": 4},
}
_WORDS = {
    RANDOM: "random links: for no more joules than the recipe’s (left), and as many (right)",
    LEARNED: LEARNED,
    PLUS: PLUS,
}
_NOTES = (
    "Means over servers and seeds, after the last round. Number: points above the line of random links at the same "
    "link energy; where joules bring less and less, what random links really reach lies a little above that line."
)


def links(data: Data) -> Figure:
    """A row of panels for each size, a column for each regime; all panels are as many points high."""
    sizes = list(dict.fromkeys(panel["servers"] for panel in data["panels"]))
    columns = len(data["panels"]) // len(sizes)
    figure = st.page(WIDTH, 2.0 + 2.3 * len(sizes), words.title(data), words.subtitle(data, _NOTES))
    grid = figure.subplots(len(sizes), columns, squeeze=False)
    set_apart(figure)
    height = max(1.0, 1.5 * max(_extent(panel) for panel in data["panels"]))
    for place, (axes, panel) in enumerate(zip(grid.flat, data["panels"], strict=True)):
        st.frame(axes)
        heading = textwrap.fill(panel["regime"], 19) if place < columns else ""
        axes.set_title(heading, loc="left", size=st.SMALL, color=st.INK, family=st.FONT)
        is_first, is_last = place % columns == 0, place >= len(data["panels"]) - columns
        st.name_axes(axes, "", f"{panel['servers']} servers" if is_first else "")
        _panel(axes, panel, height)
        if is_last and place % columns == columns // 2:
            st.name_axes(axes, f"Link energy (MJ); upwards: {ACCURACY[0].lower()}{ACCURACY[1:]}", "")
    shown = [name for name in _LOOKS if any(line["name"] == name for line in lines_of(data))]
    legend_below(figure, [Line2D([], [], **_LOOKS[name]) for name in shown], [_WORDS[name] for name in shown])
    return figure


def _panel(axes: Axes, panel: Data, height: float) -> None:
    if not panel["lines"]:
        st.notice(axes, "not run")
        return
    for line in panel["lines"]:
        axes.plot(line["x"], line["y"], **_LOOKS[line["name"]])
    values = [y for line in panel["lines"] for y in line["y"]]
    middle = (max(values) + min(values)) / 2
    axes.set_ylim(middle - height / 2, middle + height / 2)
    axes.margins(x=0.2)
    axes.xaxis.set_major_locator(MaxNLocator(3, steps=st.STEPS))
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=st.STEPS))
    gap = words.above_random(panel)
    recipe = next(line for line in panel["lines"] if line["name"] == PLUS)
    if gap is not None:
        text = axes.annotate(f"{gap:+.1f}", (recipe["x"][0], recipe["y"][0]), (0, 8), textcoords="offset points")
        text.set(ha="center", size=st.SMALL, color=COLOURS[PLUS], family=st.FONT, path_effects=st.HALO, weight="bold")


def _extent(panel: Data) -> float:
    values = [y for line in panel["lines"] for y in line["y"]]
    return max(values) - min(values) if values else 0.0
