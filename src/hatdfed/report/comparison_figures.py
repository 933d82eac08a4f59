"""Figures that compare methods, each played with one or more seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.container import BarContainer
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

import hatdfed.report.findings as fd
import hatdfed.report.formatting as fm
import hatdfed.report.labels as lb
import hatdfed.report.run_data as rp
import hatdfed.report.style as st
from hatdfed.report.formatting import format_joules, format_percent
from hatdfed.report.groups import FRONT
from hatdfed.report.link_use_figure import MOST_SERVERS, link_use_figure
from hatdfed.report.regret_figure import has_regret, regret_figure
from hatdfed.report.run_data import RunData, Vector, run_data
from hatdfed.report.style import DrawnMethod, FigureStyle, StyledFigure, format_method_seeds, style_methods
from hatdfed.runs.statistics import Comparison

_NAMES = 0.3  # of the width of the bars' figure: names of methods
_MOST_LINES = 5  # of a name
_LINE = 0.55  # of a bar's room: a line of a name
_LOG_RATIO = 30  # of the most expensive method to the cheapest, beyond which the axis is logarithmic


def select_runs(comparison: Comparison) -> dict[str, list[RunData]]:
    """The runs that figures show, by method. Figures rank: not what saw the test set, or is of another world."""
    fair = [row["method"] for row in comparison.summary if row["same_world"] and not row["leaks_test"]]
    return {name: [run_data(run) for run in comparison.runs[name]] for name in fair}


def write_comparison_figures(
    runs: Mapping[str, Sequence[RunData]], folder: Path, style: FigureStyle = st.SCREEN
) -> list[Path]:
    """Draw all figures of a comparison into `folder`; return the files."""
    return st.save_figures(draw_comparison_figures(runs, style), folder)


def draw_comparison_figures(
    runs: Mapping[str, Sequence[RunData]], style: FigureStyle = st.SCREEN
) -> dict[str, StyledFigure]:
    """Draw accuracy, energy, both, the use of links (if not too many) and regret (of a budget), by their names."""
    methods = style_methods(runs)
    figures = {
        "accuracy": _accuracy(methods, style),
        "accuracy_vs_energy": _accuracy_vs_energy(methods, style),
        "energy": _energy(methods, style),
    }
    if all(run.num_servers <= MOST_SERVERS for method in methods for run in method.runs):
        figures["link_use"] = link_use_figure(methods, style)
    if any(has_regret(method) for method in methods):
        figures["regret"] = regret_figure(methods, style)
    return figures


def _accuracy(methods: Sequence[DrawnMethod], style: FigureStyle) -> StyledFigure:
    """Mean validation accuracy over rounds, a line for each method and ± 1 sd over its seeds around it."""
    curves = {method.name: rp.curve(method.runs, "avg_accuracy") for method in methods}  # name -> rounds, mean, sd
    final = {name: (mean[-1], sd[-1]) for name, (_, mean, sd) in curves.items()}
    ranked = sorted(methods, key=lambda method: -np.nan_to_num(final[method.name][0], nan=-1.0))
    title = fd.best_finding(ranked[0].name, final[ranked[0].name][0], len(ranked))
    note = f"Mean over servers. {format_method_seeds(methods, 'bands show')}"
    figure, axes = st.chart(9.2, 5.2, title, note, style, above=len(ranked))
    lines = draw_accuracy(axes, list(reversed(ranked)))  # the best in front
    st.percent_axis(axes, np.concatenate([mean + side * sd for _, mean, sd in curves.values() for side in (-1, 1)]))
    st.name_axes(axes, "Round", "Validation accuracy (%)")
    words = [f"{method.name}  {format_percent(*final[method.name])}" for method in ranked]
    handles = [lines[method.name] for method in ranked]
    st.legend(axes, handles, words, loc="upper left", bbox_to_anchor=(1.01, 1.02), handlelength=2.8)
    return figure


def draw_accuracy(axes: Axes, methods: Sequence[DrawnMethod]) -> dict[str, Line2D]:
    """Draw a line for each method and a band of ± 1 sd over its seeds; return the lines by method."""
    lines, played = {}, []
    for method in methods:
        rounds, mean, sd = rp.curve(method.runs, "avg_accuracy")
        (line,) = axes.plot(rounds, mean, color=method.colour, linestyle=method.dashes, linewidth=1.8)
        line.set_marker("o" if len(rp.finite(mean)) == 1 else "")
        axes.fill_between(rounds, mean - sd, mean + sd, color=method.colour, alpha=0.13, linewidth=0)
        lines[method.name] = line
        played += [rounds[0], rounds[-1]]
    st.round_axis(axes, min(played), max(played))
    return lines


def _accuracy_vs_energy(methods: Sequence[DrawnMethod], style: FigureStyle) -> StyledFigure:
    """Test accuracy against total energy: a point with error bars for each method, a faint one for each seed."""
    shown = [method for method in methods if len(rp.finite(method.test_accuracy))]
    absent = ", ".join(method.name for method in methods if not len(rp.finite(method.test_accuracy)))
    # [M, 2, 2]: joules and percent, mean and sd of each
    spots = np.array([(rp.mean_and_sd(m.joules), rp.mean_and_sd(m.test_accuracy)) for m in shown]).reshape(-1, 2, 2)
    front = find_front(shown)
    title = fd.front_finding([shown[index].name for index in front], len(shown))
    note = f"Test accuracy after the last round. {format_method_seeds(methods, 'bars show')} Rings: on {FRONT}."
    figure, axes = st.chart(9.2, 5.8, title, f"{note} Not measured: {absent}." if absent else note, style)
    seeds = np.concatenate([(method.joules, method.test_accuracy) for method in methods], axis=1).T  # [S, 2]
    unit = _energy_axis(axes, np.append(seeds[:, 0], _spokes(spots)[:, 0]))
    spots[:, 0] /= unit
    draw_points(axes, shown, spots, unit)
    st.percent_axis(axes, np.append(seeds[:, 1], _spokes(spots)[:, 1]))
    busy = np.concatenate([_spokes(spots), seeds / (unit, 1)])
    ring: dict[str, Any] = {"marker": "o", "linestyle": "", "markersize": 16, "fillstyle": "none"}
    axes.plot(*spots[front, :, 0].T, color=st.INK, markeredgewidth=1.1, zorder=2, **ring)
    lb.place_labels(figure, axes, spots[:, :, 0], [method.name for method in shown], busy, front)
    return figure


def find_front(methods: Sequence[DrawnMethod]) -> list[int]:
    """The methods that no other one beats at validation accuracy and energy: the test set ranks nothing."""
    known = [index for index, method in enumerate(methods) if np.isfinite(method.validation).all()]
    spots = np.array([(methods[index].joules.mean(), methods[index].validation.mean()) for index in known])
    return [known[place] for place in rp.pareto_front(spots.reshape(-1, 2))]


def draw_points(axes: Axes, methods: Sequence[DrawnMethod], spots: Vector, unit: float) -> None:
    """Draw a point with error bars for each method, [M, 2, 2] in `spots`, and a faint one for each seed."""
    for method, ((x, x_sd), (y, y_sd)) in zip(methods, spots, strict=True):
        look: dict[str, Any] = {"color": method.colour, "marker": method.marker, "linestyle": ""}
        if len(method.runs) > 1:
            axes.plot(method.joules / unit, method.test_accuracy, markersize=3.5, alpha=0.45, markeredgewidth=0, **look)
        axes.errorbar(x, y, y_sd, x_sd, markersize=8, markeredgecolor=st.PAPER, elinewidth=1.1, zorder=3, **look)


def _energy_axis(axes: Axes, joules: Vector) -> float:
    """Set an x axis for these energies, logarithmic if they differ widely; return its unit in joules."""
    low, high = float(joules.min()), float(joules.max())
    is_log = low > 0 and high / low > _LOG_RATIO
    unit = fm.EnergyUnit("logarithmic", 1.0) if is_log else fm.energy_unit(high)
    st.name_axes(axes, f"Total energy ({unit.symbol})", "Average test accuracy (%)")
    if is_log:
        axes.set(xscale="log", xlim=(low / 1.3, high * 1.5))
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 300 else (1,)))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: format_joules(value)))
    else:
        left, right = rp.limits(joules / unit.joules, least=0.1 * high / unit.joules or 1.0)
        axes.set_xlim(max(left, -0.02 * right), right)
    return unit.joules


def _spokes(spots: Vector) -> Vector:  # [M, 2, 2] -> [many, 2]
    """Compute points along all error bars."""
    share = np.linspace(-1, 1, 61)[:, None]  # so near that no label fits in between
    mean, sd = spots[:, :, 0], spots[:, :, 1]
    arms = [mean + share[..., None] * sd * axis for axis in ((1, 0), (0, 1))]
    return np.concatenate(arms).reshape(-1, 2)


def _energy(methods: Sequence[DrawnMethod], style: FigureStyle) -> StyledFigure:
    """Energy of each method as a bar stacked by cause, mean over its seeds, the cheapest method on top."""
    ranked = sorted(methods, key=lambda method: float(method.joules.mean()))
    means = {method.name: float(method.joules.mean()) for method in ranked}
    unit, note = fm.energy_unit(max(means.values())), f"Energy by cause. {format_method_seeds(methods, 'numbers show')}"
    names = _fold_names(list(means), style)
    more = [name.count("\n") for name in names]
    height = 2.1 + 0.34 * max(1.0, style.scale) * sum(max(1.0, _LINE * (lines + 1)) for lines in more)
    figure, axes = st.chart(8.6, height, fd.cost_finding(means), note, style, above=2 + sum(more))
    left, bars, labels = draw_energy(axes, ranked, unit.joules)
    for row, method in enumerate(ranked):
        spread = format_joules(*rp.mean_and_sd(method.joules))
        text = axes.annotate(spread, (left[row], row), (5, 0), textcoords="offset points", va="center")
        text.set(size=style.scale * st.SMALL, family=st.FONT, color=st.INK, path_effects=st.HALO)
    axes.set_yticks(range(len(ranked)), names)
    axes.tick_params(axis="y", labelcolor=st.INK, labelsize=style.scale * (st.BODY - 0.5))
    axes.grid(visible=False, axis="y")
    axes.set(ylim=(len(ranked) - 0.5, -0.5), xlim=(0, (1.6 if st.is_narrow(axes) else 1.22) * left.max() or 1.0))
    axes.xaxis.set_major_locator(MaxNLocator(8, steps=st.STEPS))
    st.name_axes(axes, f"Total energy ({unit.symbol})", "")
    st.legend(axes, bars, labels, loc="lower left", bbox_to_anchor=(-0.01, 1.0), ncols=3, share=1 - _NAMES)
    return figure


def _fold_names(names: Sequence[str], style: FigureStyle) -> list[str]:
    """Fold names onto lines that leave most of a figure to its bars."""
    letters = st.count_letters(_NAMES * st.find_size(8.6, 3.0, style)[0], style.scale * (st.BODY - 0.5))
    return [st.fold(name, letters, _MOST_LINES) for name in names]


def draw_energy(
    axes: Axes, methods: Sequence[DrawnMethod], unit: float
) -> tuple[Vector, list[BarContainer], list[str]]:
    """Draw a bar for each method, stacked by cause; return where bars end, those of each cause, and what it is called.

    Causes that the paper does not have are left out where nothing was spent on them.
    """
    left, bars, labels = np.zeros(len(methods)), [], []
    for cause, colour in st.CAUSE_COLOURS.items():
        spent = np.array([np.mean([rp.spent_on(run, cause) for run in method.runs]) for method in methods])
        if cause not in rp.PAPER_COLUMNS and not spent.any():
            continue
        labels.append(rp.CAUSES[cause])
        bars.append(axes.barh(range(len(methods)), spent / unit, left=left, height=0.66, color=colour))
        left = left + spent / unit
    return left, bars, labels
