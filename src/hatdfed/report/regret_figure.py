"""Figure of the regret of methods that draw a budget of links, and of the theoretical bounds of the bandit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator

import hatdfed.report.findings as fd
import hatdfed.report.formatting as fm
import hatdfed.report.run_data as rp
import hatdfed.report.style as st
from hatdfed.core.policies.link_bandit import theorem_learning_rate
from hatdfed.core.regret import printed_bound, standard_bound
from hatdfed.report.run_data import RunData, Vector
from hatdfed.report.style import DrawnMethod, FigureStyle, StyledFigure, format_method_seeds

Curve = tuple[Vector, Vector, Vector]  # rounds, mean, sd; [R] each

_FAR = 1.6  # times the largest regret: if all bounds are beyond that, the axis is broken below them
_LOWER, _UPPER = 0.74, 0.80  # of the axis: where the break begins and ends
_NOTE = "Regret against the best fixed set of as many links. Methods that value links differently do not compare."


class _Entry(NamedTuple):
    """A line and its text in the legend."""

    last: float
    line: Any
    text: str


class _Bound(NamedTuple):
    """An upper bound on the expected regret."""

    value: Vector  # [R]
    text: str
    dashes: Any


def has_regret(method: DrawnMethod) -> bool:
    """Whether the method draws a budget of links; only then regret is defined."""
    return all(run.budget is not None for run in method.runs)


def regret_figure(methods: Sequence[DrawnMethod], style: FigureStyle = st.SCREEN) -> StyledFigure:
    """Draw the cumulative regret, a line for each method with ± 1 sd over its seeds; bounds are dashed lines."""
    shown = [method for method in methods if has_regret(method)]
    curves = {method.name: rp.curve(method.runs, "regret_best_fixed") for method in shown}
    rounds = max((curve[0] for curve in curves.values()), key=len)
    bounds = _bounds(shown, rounds)
    height = max(5.2, 1.9 + 0.2 * (len(shown) + 2 * len(bounds)))
    absent = ", ".join(method.name for method in methods if not has_regret(method))
    note = f"{format_method_seeds(shown, 'bands show')} {_NOTE}{_describe_absent(absent)}"
    figure, axes = st.chart(9.2, height, _title(shown, curves), note, style, above=len(shown) + 2 * len(bounds))
    entries = [_line(axes, method, curves[method.name]) for method in shown]
    entries += [_bound_line(axes, bound, rounds) for bound in bounds]
    st.round_axis(axes, rounds[0], rounds[-1])
    _regret_axis(axes, list(curves.values()), bounds)
    st.name_axes(axes, "Round", "Cumulative regret")
    entries.sort(key=lambda entry: -np.nan_to_num(entry.last, nan=-np.inf))  # as the lines end, from the top down
    lines, words = [entry.line for entry in entries], [entry.text for entry in entries]
    st.legend(axes, lines, words, loc="upper left", bbox_to_anchor=(1.01, 1.02), handlelength=2.8)
    return figure


def _describe_absent(names: str) -> str:
    """Name the methods that are not shown; a policy of one's own may be unknown to the process that draws."""
    return f" Not shown, without a known budget of links: {names}." if names else ""


def _line(axes: Axes, method: DrawnMethod, curve: Curve) -> _Entry:
    rounds, mean, sd = curve
    (line,) = axes.plot(rounds, mean, color=method.colour, linestyle=method.dashes, linewidth=1.8)
    line.set_marker("o" if len(rp.finite(mean)) == 1 else "")
    axes.fill_between(rounds, mean - sd, mean + sd, color=method.colour, alpha=0.13, linewidth=0)
    return _Entry(mean[-1], line, f"{method.name}  {fm.format_number(mean[-1], sd[-1])}")


def _bound_line(axes: Axes, bound: _Bound, rounds: Vector) -> _Entry:
    look: dict[str, Any] = {"color": st.INK, "linestyle": bound.dashes, "linewidth": 1.3}
    if len(rounds) > 1:
        (line,) = axes.plot(rounds, bound.value, **look)
    else:  # a line of one round has no length
        line = axes.axhline(bound.value[0], **look)
    return _Entry(bound.value[-1], line, f"{bound.text}  {bound.value[-1]:,.0f}")


def _title(methods: Sequence[DrawnMethod], curves: Mapping[str, Curve]) -> str:
    """State the regret of the first bandit, or of the first method if there is none."""
    method = next((method for method in methods if method.runs[0].learning_rate), methods[0])
    rounds, mean, _ = curves[method.name]
    return fd.regret_finding(method.name, mean[-1], rounds[-1], _standard(method.runs[0], rounds[-1]))


def _standard(run: RunData, played: float) -> float | None:
    """Compute the standard bound on a bandit's expected regret; None for other methods."""
    if not run.budget or not run.learning_rate:
        return None
    return standard_bound(run.num_servers * (run.num_servers - 1), run.budget, int(played), run.learning_rate)


def _bounds(methods: Sequence[DrawnMethod], rounds: Vector) -> list[_Bound]:
    """Make the standard bound of each kind of bandit, and the bound printed in the paper where it applies."""
    kinds: dict[tuple[Any, ...], list[DrawnMethod]] = {}
    for method in methods:
        run = method.runs[0]
        if _standard(run, 1) is not None:
            kinds.setdefault((run.num_servers, run.horizon, run.budget, run.learning_rate), []).append(method)
    standard, printed = [], {}
    for (num_servers, horizon, _, rate), alike in kinds.items():
        value = np.array([_standard(alike[0].runs[0], played) for played in rounds], dtype=np.float64)
        whose = f" of {alike[0].name}" if len(kinds) > 1 else ""
        standard.append(_Bound(value, f"standard bound{whose}\n(in expectation)", (0, (6, 2))))
        if math.isclose(rate, theorem_learning_rate(num_servers, horizon)):
            level = np.full(len(rounds), printed_bound(num_servers, horizon))
            text = "bound printed in the paper\n(does not hold in general)"
            printed[num_servers, horizon] = _Bound(level, text, (0, (1, 1.8)))
    return [*standard, *printed.values()]


def _regret_axis(axes: Axes, curves: Sequence[Curve], bounds: Sequence[_Bound]) -> None:
    """Set a y axis from 0 for the methods, broken below the bounds if these are far away."""
    seen = rp.finite(np.concatenate([mean + side * sd for _, mean, sd in curves for side in (-1, 1)]))
    bottom, top = min(seen.min(initial=0.0), 0.0), 1.05 * seen.max(initial=0.0) or 1.0
    ends = np.concatenate([bound.value for bound in bounds]) if bounds else np.empty(0)
    if len(ends) and ends.min() > _FAR * top:
        _broken_axis(axes, bottom, top, ends)
    else:
        axes.set_ylim(bottom, max(top, 1.05 * ends.max(initial=0.0)))
        axes.yaxis.set_major_locator(MaxNLocator(7, steps=st.STEPS))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:,g}"))


def _broken_axis(axes: Axes, bottom: float, top: float, ends: Vector) -> None:
    room = max(np.ptp(ends), 0.1 * ends.max()) / 3
    low, high = max(ends.min() - room, (top + ends.min()) / 2), ends.max() + room  # of the part above the break
    values, places = (bottom, top, low, high), (0, _LOWER, _UPPER, 1)
    axes.set_yscale(
        "function", functions=(partial(np.interp, xp=values, fp=places), partial(np.interp, xp=places, fp=values))
    )
    axes.set_ylim(bottom, high)
    steps = [
        *MaxNLocator(6, steps=st.STEPS).tick_values(bottom, top),
        *MaxNLocator(2, steps=st.STEPS).tick_values(low, high),
    ]
    axes.yaxis.set_major_locator(FixedLocator([y for y in steps if bottom <= y <= top or low <= y <= high]))
    axes.axhspan(top, low, color=st.FAINT, alpha=0.6, linewidth=0, zorder=0)
    note = axes.annotate("axis broken", (0.01, (_LOWER + _UPPER) / 2), xycoords="axes fraction", va="center")
    note.set(size=st.style_of(axes).scale * (st.SMALL - 1.5), family=st.FONT, color=st.MUTED)
