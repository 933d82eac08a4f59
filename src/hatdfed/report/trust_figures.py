"""Figures of what a policy believes: the verdicts of servers on each other, and the groups of servers over rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

import hatdfed.report.findings as fd
import hatdfed.report.style as st
from hatdfed.report.run_data import RunData
from hatdfed.report.style import FigureStyle, StyledFigure
from hatdfed.report.trust_data import MOST_SERVERS, OrderedVerdicts, order_verdicts
from hatdfed.runs.trust_history import (
    Span,
    TrustHistory,
    find_marks,
    find_spans,
    format_members,
    index_groups,
    order_by_group,
    summarise_groups,
)

_MOST_NAMES = 40  # servers; more numbers along an axis are too small to read
_MOST_NAMED_GROUPS = 5
_LONGEST_NAME = 24  # letters of a group's name
_MARKS = {"introduced again": ("^", st.INK), "left": ("x", st.INK)}
_STATES = {"waiting": st.WAITING, "alone": st.ALONE}


def trust_figures(run: RunData, style: FigureStyle = st.SCREEN) -> dict[str, StyledFigure]:
    """Draw what the policy believed, by the name of the file; nothing of a policy that believes nothing."""
    if run.trust is None or len(order_by_group(run.trust.changes)) > MOST_SERVERS:
        return {}
    verdicts = order_verdicts(run.trust)
    figures = {} if verdicts is None else {"verdicts": verdicts_figure(run, run.trust, verdicts, style)}
    return {**figures, "groups": groups_figure(run, run.trust, style)}


def verdicts_figure(
    run: RunData, trust: TrustHistory, verdicts: OrderedVerdicts, style: FigureStyle = st.SCREEN
) -> StyledFigure:
    """Draw the last verdicts of every receiver on every sender, in the order of the final groups."""
    note = f"{fd.describe_verdicts(_count(run, trust.verdicts_at or 0))} Lines: between groups."
    title = fd.verdicts_finding(verdicts.inside, verdicts.outside)
    figure, axes = st.chart(7.6, 6.6, title, f"{run.title}. {note}", style)
    ramp = LinearSegmentedColormap.from_list("verdicts", st.VERDICT_COLOURS).with_extremes(bad=st.UNKNOWN)
    scale = ScalarMappable(Normalize(-1, 1), ramp)
    colours = scale.to_rgba(np.ma.masked_invalid(verdicts.verdict))
    colours[np.diag_indices(len(colours))] = 1.0  # nobody judges itself
    axes.imshow(colours, interpolation="nearest")
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    for edge in np.flatnonzero(np.diff(verdicts.group) != 0) + 0.5:
        axes.axhline(edge, color=st.INK, linewidth=0.8)
        axes.axvline(edge, color=st.INK, linewidth=0.8)
    _name_servers(axes, verdicts.servers, both=True)
    st.name_axes(axes, "Sending server", "Receiving server")
    st.colour_bar(figure, axes, scale, "Verdict: −1 harmful, 1 harmless")
    return figure


def groups_figure(run: RunData, trust: TrustHistory, style: FigureStyle = st.SCREEN) -> StyledFigure:
    """Draw a row for each server, coloured by its group, with marks where it left a group or was introduced again."""
    order = order_by_group(trust.changes)
    row = {server: index for index, server in enumerate(order)}
    found, colours = summarise_groups(trust.changes), index_groups(trust.changes)
    height = float(np.clip(2.4 + 0.24 * len(order), 3.6, 9.0))
    note = f"{run.title}. {fd.GROUPS_EXPLAINED}"
    figure, axes = st.chart(8, height, fd.groups_finding(found), note, style, above=3)
    end = int(run.rounds[-1]["t"]) + 1
    for span in find_spans(trust.changes, end):
        first, last = _count(run, span.first), _count(run, span.end)
        axes.barh(row[span.server], last - first, left=first - 0.5, height=0.82, color=_colour(span, colours))
    marks = find_marks(trust.changes)
    for kind, (marker, colour) in _MARKS.items():
        some = [mark for mark in marks if mark.kind == kind]
        if some:
            x, y = [_count(run, mark.t) for mark in some], [row[mark.server] for mark in some]
            axes.scatter(x, y, marker=marker, s=26, color=colour, linewidth=1.4, zorder=3)
    axes.set_ylim(len(order) - 0.5, -0.5)
    axes.grid(visible=False)
    st.round_axis(axes, 0.5, end + 0.5)
    _name_servers(axes, order, both=False)
    st.name_axes(axes, "Round", "Server")
    handles, words = _explain(trust, found, colours, {mark.kind for mark in marks})
    st.legend(axes, handles, words, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def _colour(span: Span, colours: Mapping[int, int]) -> str:
    """The colour of a group, or of the state of a server that is in none of several members."""
    if span.state == "member" and span.group is not None and span.group in colours:
        return _group_colour(colours[span.group])
    return _STATES.get(span.state, st.PALETTE[5])


def _group_colour(index: int) -> str:
    return st.PALETTE[index % (len(st.PALETTE) - 1)]  # without the grey, which means alone


def _explain(
    trust: TrustHistory, found: Mapping[str, Any], colours: Mapping[int, int], marks: set[str]
) -> tuple[list[Any], list[str]]:
    """Make the entries of the legend: final groups, states, marks."""
    named = [
        (_group_colour(index), _shorten(group)) for index, group in enumerate(found["groups"][:_MOST_NAMED_GROUPS])
    ]
    if len(colours) > len(named):
        named.append((_group_colour(len(named)), "other groups"))
    states = {change.state for change in trust.changes}
    named += [(colour, word) for word, colour in _STATES.items() if word in states]
    handles: list[Any] = [Patch(color=colour) for colour, _ in named]
    for kind, (marker, colour) in _MARKS.items():
        if kind in marks:
            handles.append(Line2D([], [], marker=marker, color=colour, linestyle="", markersize=5))
            named.append((colour, "left its group" if kind == "left" else kind))
    return handles, [word for _, word in named]


def _shorten(group: Sequence[int]) -> str:
    name = format_members(group)
    return name if len(name) <= _LONGEST_NAME else f"{len(group)} with server {group[0]}"


def _count(run: RunData, t: int) -> int:
    """The number of rounds completed after round t."""
    return t - int(run.rounds[0]["t"]) + 1


def _name_servers(axes: Axes, order: Sequence[int], *, both: bool) -> None:
    shown = len(order) <= _MOST_NAMES
    for axis in (axes.xaxis, axes.yaxis) if both else (axes.yaxis,):
        axis.set_ticks(range(len(order)) if shown else [], list(map(str, order)) if shown else [])
