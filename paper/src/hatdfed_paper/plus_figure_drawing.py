"""How the figures about `hat-dfed-plus` are drawn, from the plain numbers of `plus_figure_data`."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

import hatdfed.report.style as st
from hatdfed_paper import figure_words as words
from hatdfed_paper.figure_data import Data, lines_of
from hatdfed_paper.figure_panels import ACCURACY, COLOURS, ENERGY, WIDTH, four, legend_below
from hatdfed_paper.markdown_cells import price
from hatdfed_paper.plus_figure_data import AS_IT_IS, DENSE, EQUAL
from hatdfed_paper.plus_plans import PLUS

_MARKS = {AS_IT_IS: "o", EQUAL: "D", DENSE: "s", PLUS: "*"}
_TAGS = {
    AS_IT_IS: "as they are",
    EQUAL: "all parts but its links,\nas few link joules",
    DENSE: "with its loss and end,\nfloat32, every round",
    PLUS: PLUS,
}
_MEANS = "Means over servers and seeds, after the last round. Stairs: no other point beats these at both."
_TICKS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500)  # MJ


def front(data: Data) -> Figure:
    """Four panels of accuracy over energy: a mark for each method, a shape for each way to play it."""
    figure = st.page(WIDTH, 7.4, words.title(data), words.subtitle(data, _MEANS, words.SETTING))
    panels = four(figure, data, f"{ENERGY}, logarithmic", ACCURACY)
    for axes, panel in panels:
        for line in panel["lines"]:
            _marks(axes, line)
            _tag(axes, line)
        _stairs(axes, panel)
    axes, lines = panels[0][0], lines_of(data)
    energy = [x for line in lines for x in line["x"]]
    axes.set_xscale("log")
    axes.set_xlim(min(energy) / 1.5, max(energy) * 1.6)
    axes.xaxis.set_major_locator(FixedLocator(_TICKS))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    accuracy = np.array([y for line in lines for y in line["y"]])
    room = 0.16 * np.ptp(accuracy)  # for the words above and below the marks
    st.percent_axis(axes, np.append(accuracy, [accuracy.min() - room, accuracy.max() + room]))
    _legend(figure, lines)
    return figure


def _marks(axes: Axes, line: Data) -> None:
    for name, x, y in zip(line["methods"], line["x"], line["y"], strict=True):
        axes.plot(x, y, linestyle="", **_look(line["name"], name))


def _look(way: str, method: str) -> dict[str, Any]:
    size = {PLUS: 13.0, EQUAL: 5.5}.get(way, 6.5)
    return {
        "color": COLOURS.get(method, st.INK), "marker": _MARKS[way], "markersize": size, "markeredgecolor": st.PAPER,
        "markeredgewidth": 0.6, "zorder": 4 if way == PLUS else 3,
    }  # fmt: skip


def _tag(axes: Axes, line: Data) -> None:
    """What a cloud of marks is: above it, or below those that lie below others."""
    is_low = line["name"] in (AS_IT_IS, EQUAL)
    x = float(np.exp(np.mean(np.log(line["x"]))))
    y = min(line["y"]) if is_low else max(line["y"])
    text = axes.annotate(_TAGS[line["name"]], (x, y), (0, -9 if is_low else 9), textcoords="offset points")
    text.set(ha="center", va="top" if is_low else "bottom", size=st.SMALL, family=st.FONT, linespacing=1.15)
    text.set(color=st.INK, path_effects=st.HALO, weight="bold" if line["name"] == PLUS else "normal", zorder=5)


def _stairs(axes: Axes, panel: Data) -> None:
    """The Pareto front, on to the right of its last point."""
    spots = [(panel["lines"][line]["x"][place], panel["lines"][line]["y"][place]) for line, place in panel["front"]]
    if spots:
        x, y = zip(*spots, (1e6, spots[-1][1]), strict=True)
        axes.step(x, y, where="post", color="#9AA3AD", linewidth=1.1, zorder=1)


def _legend(figure: Figure, lines: list[Data]) -> None:
    """Colours of the methods; the shapes are named where they stand."""
    names = list(dict.fromkeys(name for line in lines for name in line["methods"]))
    handles = [Line2D([], [], linestyle="", **_look(PLUS if name == PLUS else AS_IT_IS, name)) for name in names]
    legend_below(figure, handles, names, columns=len(names))


def regimes(data: Data) -> Figure:
    """A field for every pair of prices: what is saved of the baselines' energy, and what their links take of it."""
    lines = lines_of(data)
    saved = np.array([line["saved"] for line in lines])  # [prices of a sample, prices of a model]
    notes = (
        "Large number: percent of the baselines’ total energy that hat-dfed-plus saves; small: the links’ share of "
        "that energy. λ = 0.3, ρ = 0.5; the same runs, priced anew. Frame: the paper’s own prices."
    )
    figure = st.page(WIDTH, 6.6, words.title(data), words.subtitle(data, notes))
    axes = figure.add_subplot(facecolor=st.PAPER)
    st.frame(axes)
    axes.grid(visible=False)
    axes.spines["bottom"].set_visible(False)
    scale = ScalarMappable(Normalize(0, 100), colormaps["YlGnBu"])
    axes.imshow(scale.to_rgba(saved), interpolation="nearest", origin="lower", aspect="auto")
    for row, line in enumerate(lines):
        for column, (percent, share) in enumerate(zip(line["saved"], line["share"], strict=True)):
            _field(axes, (column, row), percent, share)
    axes.set_xticks(range(saved.shape[1]), [price(x) for x in lines[0]["x"]])
    axes.set_yticks(range(len(lines)), [price(line["joules_per_sample"]) for line in lines])
    st.name_axes(axes, "Joules per sent model (float32, mean link)", "Joules per trained sample (mean server)")
    middle = ((saved.shape[1] - 1) / 2, (len(lines) - 1) / 2)  # prices are the paper's times the same factors both ways
    axes.add_patch(
        Rectangle((middle[0] - 0.5, middle[1] - 0.5), 1, 1, fill=False, edgecolor=COLOURS["hat-dfed"], linewidth=2.4)
    )
    st.colour_bar(figure, axes, scale, f"Total energy saved by {PLUS} (%)")
    return figure


def _field(axes: Axes, at: tuple[float, float], saved: float, share: float) -> None:
    colour = st.PAPER if saved > 55 else st.INK
    axes.text(
        at[0], at[1] + 0.1, f"{saved:.0f}", ha="center", va="center", size=st.BODY + 1, color=colour, family=st.FONT
    )
    small = axes.text(at[0], at[1] - 0.26, f"links {share:.0f}", ha="center", va="center", color=colour)
    small.set(size=st.SMALL - 1, family=st.FONT)
