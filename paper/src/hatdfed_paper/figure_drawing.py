"""How the figures of the experiments are drawn, from the plain numbers of `figure_data`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, MaxNLocator

import hatdfed.report.run_data as rp
import hatdfed.report.style as st
from hatdfed.report.run_data import Vector
from hatdfed_paper import figure_words as words
from hatdfed_paper.figure_data import OURS, Data, lines_of
from hatdfed_paper.figure_panels import ACCURACY, COLOURS, ENERGY, GREY, WIDTH, four, legend_below, note, set_apart
from hatdfed_paper.link_figure import links
from hatdfed_paper.plus_figure_drawing import front, regimes

_DASHES: dict[str, Any] = {"full": (0, (5, 1.5)), "local": (0, (1.2, 1.2))}
_LEVELS = (("#0072B2", "o"), ("#D55E00", "s"), ("#009E73", "^"), ("#882255", "D"))
_BOUNDS = {"standard": "standard bound, in expectation", "printed": "printed bound, does not hold in general"}
_SYMBOLS = {"gain_share": "α", "quality_share": "β", "link_share": "γ"}
_MEANING = {
    "gain_share": "α, weight of accuracy against energy",
    "quality_share": "β, weight of quality against volume",
}
_ASIDE = 0.006  # in shares, between lines that would cover each other
_MEANS = "Means over servers and seeds; numbers: last round."
_WHISKERS = "Whiskers: ± 1 standard error over worlds, which are the same at every point."


def draw(data: Data, path: Path) -> Path:
    """Write the picture of these numbers and say where."""
    pictures = {
        "accuracy": _learning_curves,
        "accuracy-vs-energy": _learning_curves,
        "sparsity": _sparsity,
        "sensitivity": _sensitivity,
        "regret": _regret,
        "front": front,
        "regimes": regimes,
        "links": links,
    }
    return st.save(pictures[data["kind"]](data), path)


def _learning_curves(data: Data) -> Figure:
    """Four panels of accuracy over rounds or energy, each with a legend in the order in which the lines end."""
    is_over_rounds = data["kind"] == "accuracy"
    notes = [_MEANS, words.SETTING] if is_over_rounds else [_MEANS, *_energy_notes(data), words.SETTING]
    figure = st.page(WIDTH, 6.6, words.title(data), words.subtitle(data, *notes))
    over = "Rounds played" if is_over_rounds else "Energy spent so far (MJ)"
    panels = four(figure, data, over, "Validation accuracy (%)")
    for axes, panel in panels:
        ranked = sorted(panel["lines"], key=lambda line: -line["y"][-1])
        handles = [_curve(axes, line, has_end=not is_over_rounds) for line in ranked]
        if ranked:
            names = [f"{line['name']}  {line['y'][-1]:.1f}" for line in ranked]
            st.legend(axes, handles, names, loc="center left", bbox_to_anchor=(1.01, 0.5), handlelength=1.7)
    axes = panels[0][0]
    st.percent_axis(axes, _after_the_climb(data))
    if is_over_rounds:
        st.round_axis(axes, 0, max(line["x"][-1] for line in lines_of(data)))
    else:
        axes.set_xlim(0, 1.04 * _dearest_rival(data))
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=st.STEPS, integer=is_over_rounds))
    return figure


def _curve(axes: Axes, line: Data, *, has_end: bool) -> Any:
    """A method's line, with a dot where its last round is; hat-dfed's is thick, with a hair line at what it spent."""
    name = line["name"]
    (drawn,) = axes.plot(line["x"], line["y"], color=COLOURS.get(name, GREY), linestyle=_DASHES.get(name, "-"))
    drawn.set(linewidth=2.4 if name == OURS else 1.3, zorder=3 if name == OURS else 2)
    if has_end:
        drawn.set(marker="o", markersize=5.5 if name == OURS else 4, markevery=[-1])
        if name == OURS:
            axes.axvline(line["x"][-1], color=COLOURS[OURS], linewidth=0.7, zorder=1)
    return drawn


def _after_the_climb(data: Data) -> Vector:
    """Accuracies from a fifth of each line on: the axis leaves out the steep beginning, or ends would look alike."""
    return np.concatenate([line["y"][len(line["y"]) // 5 :] for line in lines_of(data)])


def _energy_notes(data: Data) -> list[str]:
    """What the hair line is, and where the line ends that leaves the axes."""
    notes = [f"Vertical line: all that {OURS} spends."] if any(line["name"] == OURS for line in lines_of(data)) else []
    beyond = [line for line in lines_of(data) if line["x"][-1] > 1.04 * _dearest_rival(data)]
    for name in dict.fromkeys(line["name"] for line in beyond):
        ends = words.span([line["x"][-1] for line in beyond if line["name"] == name], ".2g")
        notes.append(f"{name} ends beyond the axis, at {ends} MJ.")
    return notes


def _dearest_rival(data: Data) -> float:
    """Where the energy axis ends: with all methods but those that are bounds, as far as there are others."""
    lines = lines_of(data)
    rivals = [line for line in lines if line["name"] in COLOURS]
    return float(max(line["x"][-1] for line in rivals or lines))


def _regret(data: Data) -> Figure:
    """Four panels of regret over rounds, with the range over seeds and the two bounds."""
    meaning = "Regret against the best fixed links; line: mean, band: range over seeds."
    figure = st.page(WIDTH, 6.2, words.title(data), words.subtitle(data, meaning, words.SETTING))
    panels = four(figure, data, "Rounds played", "Regret (utility missed)")
    for axes, panel in panels:
        for line in panel["lines"]:
            axes.fill_between(line["x"], line["least"], line["most"], color=COLOURS[OURS], alpha=0.25, linewidth=0)
            axes.plot(line["x"], line["y"], color=COLOURS[OURS], linewidth=2)
            note(axes, f"{OURS}  {words.whole(line['y'][-1])}", (line["x"][-1], line["most"][-1]), ha="right")
            _bound(axes, line["x"], panel["standard"], "standard")
            if panel["printed"] is not None:
                _bound(axes, line["x"], [panel["printed"]] * len(line["x"]), "printed")
    axes, lines = panels[0][0], lines_of(data)
    st.round_axis(axes, 0, max(line["x"][-1] for line in lines))
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=st.STEPS, integer=True))
    least = min(min(line["least"]) for line in lines)
    axes.set_ylim(min(0.0, least), 1.12 * max(panel["standard"][-1] for panel in data["panels"] if panel["lines"]))
    return figure


def _bound(axes: Axes, rounds: list[float], value: list[float], kind: str) -> None:
    dashes: Any = (0, (6, 2)) if kind == "standard" else (0, (1, 1.8))
    axes.plot(rounds, value, color=st.INK, linestyle=dashes, linewidth=1.3)
    note(axes, f"{_BOUNDS[kind]}  {words.whole(value[-1])}", (rounds[-1], value[-1]), ha="right")


def _sparsity(data: Data) -> Figure:
    """Accuracy and energy over γ side by side, a line for each setting; published energies are hollow."""
    lines = lines_of(data)
    is_published = any(line["published_x"] for line in lines)
    notes = [_WHISKERS, "Hollow marks: published energy." if is_published else "", words.SETTING]
    figure = st.page(WIDTH, 4.9, words.title(data), words.subtitle(data, *filter(None, notes)))
    pair = figure.subplots(1, 2)
    set_apart(figure)
    handles: list[Any] = []
    for axes, name, meaning in zip(pair, ("accuracy", "energy"), (ACCURACY, ENERGY), strict=True):
        st.frame(axes)
        handles = _sweep(axes, lines, name)
        st.name_axes(axes, "γ, share of links drawn in a round", meaning)
    st.percent_axis(pair[0], _reach(lines, "accuracy"))
    _from_zero(pair[1], np.append(_reach(lines, "energy"), [y for line in lines for y in line["published_energy"]]))
    legend_below(figure, handles, [words.setting_name(line["setting"]) for line in lines])
    return figure


def _sensitivity(data: Data) -> Figure:
    """Accuracy above energy, over α on the left and over β on the right; the paper's best value is marked."""
    under = words.subtitle(data, _WHISKERS, "Vertical line: the value that the paper calls best.")
    figure = st.page(WIDTH, 6.6, words.title(data), under)
    grid = figure.subplots(2, 2, sharex="col", sharey="row")
    for column, panel in enumerate(data["panels"]):
        for axes, name in zip(grid[:, column], ("accuracy", "energy"), strict=True):
            st.frame(axes)
            handles = _sweep(axes, panel["lines"], name)
            axes.axvline(panel["best"], color=GREY, linewidth=0.9, zorder=1)
        top, bottom = grid[:, column]
        names = [f"{_SYMBOLS[panel['fixed']]} = {line['level']:g}" for line in panel["lines"]]
        st.legend(top, handles, names, loc="lower left", bbox_to_anchor=(-0.01, 1.0), ncols=3)
        st.name_axes(top, "", ACCURACY if column == 0 else "")
        st.name_axes(bottom, _MEANING[panel["over"]], ENERGY if column == 0 else "")
        text = f"paper: {_SYMBOLS[panel['over']]} = {panel['best']:g}"
        note(top, text, (panel["best"], 0.02), xycoords=("data", "axes fraction"))
    st.percent_axis(grid[0, 0], _reach(lines_of(data), "accuracy"))
    energy = _reach(lines_of(data), "energy")
    grid[1, 0].set_ylim(*rp.limits(energy, least=0.1 * energy.max()))
    grid[1, 0].yaxis.set_major_locator(MaxNLocator(6, steps=st.STEPS))
    set_apart(figure)
    return figure


def _sweep(axes: Axes, lines: list[Data], name: str) -> list[Any]:
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


def _reach(lines: list[Data], name: str) -> Vector:
    """All ends of the whiskers."""
    ends = [np.array(line[name]) + side * np.array(line[f"{name}_error"]) for line in lines for side in (-1, 1)]
    return np.concatenate(ends)


def _from_zero(axes: Axes, values: Vector) -> None:
    axes.set_ylim(0, 1.08 * values.max())
    axes.yaxis.set_major_locator(MaxNLocator(7, steps=st.STEPS))
