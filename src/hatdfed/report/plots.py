"""Plots of results on any axes of matplotlib: `result.plot.accuracy(ax)`.

They show what the figures of a run folder show, in the font and size of the axes that they are given. Without axes they
make a figure by `matplotlib.pyplot`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

import hatdfed.report.formatting as fm
import hatdfed.report.run_data as rp
import hatdfed.report.style as st
from hatdfed.errors import RunFolderError
from hatdfed.report import comparison_figures, confusion_figure, run_figures
from hatdfed.report.run_data import RunData, run_data
from hatdfed.report.style import DrawnMethod, style_methods
from hatdfed.runs.confusion import read_confusion
from hatdfed.runs.result import RunResult
from hatdfed.runs.round_row import ROUND_COLUMNS
from hatdfed.runs.statistics import Comparison


@dataclass(frozen=True)
class RunPlots:
    """Plots of one run."""

    result: RunResult

    @cached_property
    def _run(self) -> RunData:
        if not self.result.rounds:
            raise RunFolderError("The run has no rounds, so there is nothing to plot. Let it complete one.")
        return run_data(self.result)

    def accuracy(self, ax: Axes | None = None) -> Axes:
        """Mean validation accuracy over rounds, with a line for each server or, for many servers, bands."""
        axes = _axes(ax)
        seen, _ = run_figures.draw_accuracy(axes, self._run)
        st.percent_axis(axes, seen)
        return _named(axes, *run_figures.ACCURACY_AXES)

    def energy(self, ax: Axes | None = None) -> Axes:
        """Cumulative joules of device upload, training and links, stacked."""
        axes = _axes(ax)
        unit = run_figures.draw_energy(axes, self._run)
        axes.legend(loc="upper left", frameon=False)
        return _named(axes, "Round", f"Energy spent so far ({unit.symbol})")

    def accuracy_vs_energy(self, ax: Axes | None = None) -> Axes:
        """Mean validation accuracy over the joules spent so far."""
        axes, run = _axes(ax), self._run
        joules = np.sum(list(rp.cumulative_joules(run).values()), axis=0)[1:]
        unit, mean = fm.energy_unit(joules[-1]), rp.column(run.rounds, "avg_accuracy")
        axes.plot(joules / unit.joules, mean, color=st.PALETTE[0], marker="o" if len(mean) == 1 else "")
        return _named(axes, f"Energy spent so far ({unit.symbol})", "Mean validation accuracy (%)")

    def loss(self, ax: Axes | None = None) -> Axes:
        """Training loss and validation loss over rounds, means over servers; gaps where they are not known."""
        axes, played = _axes(ax), rp.rounds_played(self._run)
        for name, colour in (("training_loss", st.PALETTE[1]), ("validation_loss", st.PALETTE[0])):
            line = rp.column(self._run.rounds, name)
            mark = "o" if len(rp.finite(line)) == 1 else ""
            axes.plot(played, line, color=colour, marker=mark, label=ROUND_COLUMNS[name].label)
        axes.legend(frameon=False)
        return _named(axes, "Round", "Loss, mean over servers")

    def confusion(self, ax: Axes | None = None) -> Axes:
        """Which classes the models take for which on the test data: percent of each true class, all servers."""
        confusion = read_confusion(self.result.summary)
        if confusion is None:
            raise RunFolderError(
                "The run has no confusion matrix: its task has no classes, it has more than 100 of them, or it was "
                "played by an older hatdfed. Plot a run of a classification task."
            )
        axes = _axes(ax)
        scale = confusion_figure.draw_confusion(axes, confusion)
        axes.figure.colorbar(scale, ax=axes, label="Share of the true class (%)")
        return _named(axes, *confusion_figure.CONFUSION_AXES)

    def links(self, ax: Axes | None = None) -> Axes:
        """Share of the rounds in which each link was drawn; the row receives."""
        axes = _axes(ax)
        image = axes.imshow(rp.link_use(self._run), vmin=0, vmax=1, cmap="Blues")
        axes.figure.colorbar(image, ax=axes, label="Share of rounds")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(integer=True))
        return _named(axes, "Sending server", "Receiving server")


@dataclass(frozen=True)
class ComparisonPlots:
    """Plots of the methods of a comparison; a method that saw the test set is left out, as in its figures."""

    comparison: Comparison

    @cached_property
    def _methods(self) -> list[DrawnMethod]:
        return style_methods(comparison_figures.select_runs(self.comparison))

    def accuracy(self, ax: Axes | None = None) -> Axes:
        """Mean validation accuracy over rounds, a line for each method and ± 1 sd over its seeds around it."""
        axes = _axes(ax)
        lines = comparison_figures.draw_accuracy(axes, self._methods)
        axes.legend(list(lines.values()), list(lines), frameon=False)
        return _named(axes, *run_figures.ACCURACY_AXES)

    def energy(self, ax: Axes | None = None) -> Axes:
        """Energy of each method as a bar stacked by cause, mean over its seeds."""
        axes, methods = _axes(ax), self._methods
        unit = fm.energy_unit(max(float(method.joules.mean()) for method in methods))
        _, bars, labels = comparison_figures.draw_energy(axes, methods, unit.joules)
        axes.set_yticks(range(len(methods)), [method.name for method in methods])
        axes.invert_yaxis()
        _named(axes, f"Total energy ({unit.symbol})", "")
        _legend_above(axes, bars, labels)
        return axes

    def accuracy_vs_energy(self, ax: Axes | None = None) -> Axes:
        """Test accuracy over total energy: mean and ± 1 sd over seeds of each method."""
        axes, methods = _axes(ax), self._methods
        unit = fm.energy_unit(max(float(method.joules.max()) for method in methods))
        spots = np.array([(rp.mean_and_sd(m.joules / unit.joules), rp.mean_and_sd(m.test_accuracy)) for m in methods])
        comparison_figures.draw_points(axes, methods, spots, unit.joules)
        for method, ((x, _), (y, _)) in zip(methods, spots, strict=True):
            axes.annotate(method.name, (x, y), (6, 6), textcoords="offset points")
        return _named(axes, f"Total energy ({unit.symbol})", "Average test accuracy (%)")


def _axes(given: Axes | None) -> Axes:
    if given is not None:
        return given
    import matplotlib.pyplot as plt  # it chooses a window system, which nobody needs who gives axes

    axes: Any = plt.subplots(layout="constrained")[1]
    return axes  # type: ignore[no-any-return]


def _legend_above(axes: Axes, handles: Sequence[Any], words: Sequence[str]) -> None:
    """Add a legend above the axes, in as many columns as fit their width, at most three.

    It is inside the axes where the figure has no room above them and no layout that makes some.
    """
    figure = _lay_out(axes)
    look: dict[str, Any] = {"frameon": False, "loc": "lower left", "bbox_to_anchor": (0, 1)}
    for columns in (3, 2, 1):
        legend = axes.legend(handles, words, ncols=columns, columnspacing=1.2, borderaxespad=0.2, **look)
        if legend.get_window_extent().width <= axes.bbox.width:
            break
    if figure.get_layout_engine() is None and legend.get_window_extent().y1 > figure.bbox.y1:
        axes.legend(handles, words, loc="best")


def _lay_out(axes: Axes) -> Figure:
    """Lay out the figure of the axes as drawing it does, so that their size is known; return the figure."""
    part: Any = axes.figure
    figure: Figure = part.figure  # that of a subfigure is the whole one
    figure.draw_without_rendering()
    return figure


def _named(axes: Axes, x: str, y: str) -> Axes:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    return axes
