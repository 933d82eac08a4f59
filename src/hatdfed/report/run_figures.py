"""Figures of one run: accuracy, energy, accuracy against energy and time, the last topology, confusions, and trust."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

import hatdfed.report.findings as fd
import hatdfed.report.formatting as fm
import hatdfed.report.labels as lb
import hatdfed.report.run_data as rp
import hatdfed.report.style as st
from hatdfed.errors import RunFolderError
from hatdfed.report.confusion_figure import confusion_figures
from hatdfed.report.formatting import format_joules, format_percent
from hatdfed.report.run_data import RunData, Vector
from hatdfed.report.style import FigureStyle, StyledFigure
from hatdfed.report.topology_figure import topology_figure
from hatdfed.report.trust_figures import trust_figures
from hatdfed.runs.duration import time_unit

ACCURACY_AXES = ("Round", "Validation accuracy (%)")
_MOST_LINES = 12  # servers; more lines could not be told apart


def write_run_figures(run: RunData, folder: Path, style: FigureStyle = st.SCREEN) -> list[Path]:
    """Draw all figures of a run into `folder`; return the files."""
    return st.save_figures(draw_run_figures(run, style), folder)


def draw_run_figures(run: RunData, style: FigureStyle = st.SCREEN) -> dict[str, StyledFigure]:
    """Draw all figures of a run, by their names."""
    if not run.rounds:
        raise RunFolderError(f"The run {run.title!r} has no rounds, so there is nothing to draw. Let it complete one.")
    return {
        "accuracy": accuracy_figure(run, style),
        "energy": energy_figure(run, style),
        "accuracy_vs_energy": accuracy_vs_energy_figure(run, style),
        **accuracy_vs_time_figures(run, style),
        "topology": topology_figure(run, style),
        **confusion_figures(run, style),
        **trust_figures(run, style),
    }


def accuracy_figure(run: RunData, style: FigureStyle = st.SCREEN) -> StyledFigure:
    """Draw mean validation accuracy over rounds, with a line for each server or, for many servers, bands."""
    mean = rp.column(run.rounds, "avg_accuracy")
    figure, axes = st.chart(8, 4.8, fd.accuracy_finding(mean), run.title, style)
    seen, labels = draw_accuracy(axes, run)
    st.percent_axis(axes, seen)
    st.name_axes(axes, *ACCURACY_AXES)
    lb.end_labels(figure, axes, [*labels, lb.EndLabel(mean[-1], f"mean  {format_percent(mean[-1])}", strong=True)])
    return figure


def draw_accuracy(axes: Axes, run: RunData) -> tuple[Vector, list[lb.EndLabel]]:
    """Draw lines or bands of the servers and their mean; return all values, and labels for the servers."""
    played, mean = rp.rounds_played(run), rp.column(run.rounds, "avg_accuracy")
    draw = _server_lines if run.num_servers <= _MOST_LINES else _server_bands
    seen, labels = draw(axes, run, played)
    axes.plot(played, mean, color=st.PALETTE[0], linewidth=2.8, marker=_marker(mean), markersize=7, zorder=4)
    st.round_axis(axes, played[0], played[-1])
    return np.append(seen, mean), labels


def _server_lines(axes: Axes, run: RunData, played: Vector) -> tuple[Vector, list[lb.EndLabel]]:
    accuracy = rp.server_accuracy(run)
    for line in accuracy:
        axes.plot(played, line, color=st.PALETTE[5], alpha=0.75, linewidth=1, marker=_marker(line), markersize=4)
    labels = [f"server {server}  {format_percent(line[-1])}" for server, line in enumerate(accuracy)]
    named = () if st.is_narrow(axes) else zip(accuracy, labels, strict=True)  # there is no room for names
    return accuracy, [lb.EndLabel(line[-1], label) for line, label in named]


def _server_bands(axes: Axes, run: RunData, played: Vector) -> tuple[Vector, list[lb.EndLabel]]:
    mean, sd, worst, best = (rp.column(run.rounds, f"{name}_accuracy") for name in ("avg", "std", "worst", "best"))
    for low, high, alpha in ((worst, best, 0.22), (mean - sd, mean + sd, 0.45)):
        axes.fill_between(played, low, high, color=st.PALETTE[5], alpha=alpha, linewidth=0)
        if len(played) == 1:  # a band of one round has no area
            axes.vlines(played, low, high, color=st.PALETTE[5], alpha=alpha, linewidth=14)
    marks = {"best server": best, "mean + 1 sd": mean + sd, "mean − 1 sd": mean - sd, "worst server": worst}
    labels = [lb.EndLabel(line[-1], f"{name}  {format_percent(line[-1])}") for name, line in marks.items()]
    return np.concatenate(list(marks.values())), labels


def energy_figure(run: RunData, style: FigureStyle = st.SCREEN) -> StyledFigure:
    """Draw the cumulative joules of device upload, training and links, stacked."""
    spent, total = rp.cumulative_joules(run), rp.total_joules(run)
    figure, axes = st.chart(8, 4.8, fd.energy_finding(spent), run.title, style)
    unit = draw_energy(axes, run)
    layers = [spent[cause] / unit.joules for cause in spent]
    st.name_axes(axes, "Round", f"Energy spent so far ({unit.symbol})")
    middle = np.cumsum([layer[-1] for layer in layers]) - [layer[-1] / 2 for layer in layers]
    labels = [f"{rp.CAUSES[cause]}  {format_joules(spent[cause][-1])}" for cause in spent]
    if total > 0:
        lb.end_labels(figure, axes, [lb.EndLabel(at, text) for at, text in zip(middle, labels, strict=True)])
    else:
        st.notice(axes, "0 J in all rounds")
    return figure


def draw_energy(axes: Axes, run: RunData) -> fm.EnergyUnit:
    """Draw the joules of each cause, stacked; return the unit of the axis."""
    spent, total = rp.cumulative_joules(run), rp.total_joules(run)
    unit = fm.energy_unit(total)
    played = np.append(0.0, rp.rounds_played(run))
    axes.stackplot(
        played,
        *(spent[cause] / unit.joules for cause in spent),
        colors=[st.CAUSE_COLOURS[cause] for cause in spent],
        labels=[rp.CAUSES[cause] for cause in spent],
        linewidth=0.8,
        edgecolor=st.PAPER,
    )
    st.round_axis(axes, 0, played[-1])
    axes.set_ylim(0, 1.06 * total / unit.joules if total > 0 else 1)
    return unit


def accuracy_vs_energy_figure(run: RunData, style: FigureStyle = st.SCREEN) -> StyledFigure:
    """Draw mean validation accuracy against joules spent."""
    joules = np.sum(list(rp.cumulative_joules(run).values()), axis=0)[1:]  # [R], after each round
    finding = fd.half_way_finding(joules, rp.column(run.rounds, "avg_accuracy"))
    unit = fm.energy_unit(joules[-1])
    return _draw_accuracy_against(run, joules / unit.joules, finding, f"Energy spent so far ({unit.symbol})", style)


def accuracy_vs_time_figures(run: RunData, style: FigureStyle = st.SCREEN) -> dict[str, StyledFigure]:
    """Draw mean validation accuracy against simulated time; nothing of rounds whose time is not known."""
    seconds = np.cumsum(rp.column(run.rounds, "simulated_seconds"))  # [R], after each round
    if not np.isfinite(seconds).all():
        return {}
    finding = fd.time_finding(seconds, rp.column(run.rounds, "avg_accuracy"))
    unit = time_unit(float(seconds[-1]))
    name = f"Simulated time so far ({unit.symbol})"
    return {"accuracy_vs_time": _draw_accuracy_against(run, seconds / unit.seconds, finding, name, style)}


def _draw_accuracy_against(
    run: RunData,
    cost: Vector,  # [R]
    finding: str,
    name: str,
    style: FigureStyle,
) -> StyledFigure:
    """Draw mean validation accuracy against a cost so far, with a mark at every quarter of the rounds."""
    mean, played = rp.column(run.rounds, "avg_accuracy"), rp.rounds_played(run)
    figure, axes = st.chart(8, 4.8, finding, run.title, style)
    line = np.stack([cost, mean], axis=1)
    quarters = sorted({max(round(len(line) * quarter / 4), 1) - 1 for quarter in (1, 2, 3, 4)})
    marks = [index for index in quarters if np.isfinite(mean[index])]
    axes.plot(*line.T, color=st.PALETTE[0], linewidth=2.2)
    dots = axes.scatter(line[marks, 0], line[marks, 1], s=55, color=st.PALETTE[0], edgecolor=st.PAPER, zorder=3)
    dots.set_clip_on(False)  # so that a dot at 0 is drawn completely
    axes.set_xlim(0, 1.06 * cost[-1] if cost[-1] > 0 else 1)
    st.percent_axis(axes, mean)
    st.name_axes(axes, name, "Mean validation accuracy (%)")
    names = [f"round {played[index]:.0f}" for index in marks]
    lb.place_labels(figure, axes, line[marks], names, lb.along(line[np.isfinite(mean)]))
    return figure


def _marker(line: Vector) -> str:
    """Return a dot for a line of a single value, which would not be visible."""
    return "o" if len(rp.finite(line)) == 1 else ""
