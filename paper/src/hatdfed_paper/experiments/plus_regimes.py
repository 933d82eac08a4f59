"""Where it might matter which links are drawn, and the ways to draw them that are held against each other there.

Links drawn at random are played twice: as many as the recipe draws, and so few that they cost no more than its links,
which is the fair question where prices differ.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from hatdfed.setup.layers import merge_layers, resolve
from hatdfed_paper.claims import Claims
from hatdfed_paper.experiment import BEYOND, Experiment, Figure, Table
from hatdfed_paper.experiments.equal_footing import fitting_interval
from hatdfed_paper.figure_parts import (
    ACCURACY,
    COLOURS,
    GREY,
    WIDTH,
    Data,
    energy_line,
    lines_of,
    points_apart,
    subtitle,
)
from hatdfed_paper.plan import PLUS, Scale, Settings, point
from hatdfed_paper.plus_comparison import compare_plus, comparison_markdown
from hatdfed_paper.results import Results
from hatdfed_paper.rows import Row, row_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Picture

AS_MANY, AS_DEAR, LEARNED = "random links, as many", "random links, as dear", "learned links"
RANDOM = "random links"

REGIMES: Mapping[str, Mapping[str, Any]] = {
    "as it is": {},
    "prices spread 100 ×": {"energy": {"link_kbit_per_joule": [1.0, 100.0]}},
    "no finish": {"schedule": {"finish_rounds": 0}},
    "servers come and go": {"churn": 0.3},
    "two groups without a common label": {"label_groups": 2},
}
_RANDOM: Mapping[str, Any] = {"policy": {"thrift": 0.0}}
_LEARNING: Mapping[str, Any] = {"policy": {"learning_rate": None}, "gain_share": 1.0}


def ways_to_draw(dataset: str, servers: int) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Every regime with every way to draw links, and the settings of both on top of the recipe."""
    for regime, world in REGIMES.items():
        here = merge_layers({"servers": servers}, world)
        yield regime, PLUS, here
        yield regime, AS_MANY, merge_layers(here, _RANDOM)
        yield regime, AS_DEAR, merge_layers(here, _RANDOM, {"schedule": {"every": _interval(dataset, here)}})
        if (dataset, servers) != ("cifar-10", 50):  # which takes long; elsewhere learned links are like the recipe's
            yield regime, LEARNED, merge_layers(here, _LEARNING)


def _interval(dataset: str, here: Mapping[str, Any]) -> int:
    """The m with which random links in every m-th round cost no more than the recipe's."""
    plus = resolve({"method": PLUS, "dataset": dataset, **here})
    return fitting_interval(resolve({"method": PLUS, "dataset": dataset, **merge_layers(here, _RANDOM)}), plus)


def _points(dataset: str, scale: Scale) -> Iterator[Settings]:
    for servers in _sizes(scale):
        for _, _, settings in ways_to_draw(dataset, servers):
            yield point(dataset, PLUS, **settings)


def _sizes(scale: Scale) -> tuple[int, ...]:
    return scale.servers[2:] or scale.servers[-1:]


def _rows(results: Results, claims: Claims, scale: Scale) -> list[Row]:
    """In each regime: how links are drawn, and what the recipe is ahead of that way by."""
    rows = []
    for dataset, servers in product(scale.datasets, _sizes(scale)):
        ways = {
            (regime, way): point(dataset, PLUS, **changed) for regime, way, changed in ways_to_draw(dataset, servers)
        }
        for (regime, way), settings in ways.items():
            at, whole = results.at(settings), ways[regime, PLUS]
            if at and results.at(whole):
                keys = {"dataset": dataset, "servers": servers, "regime": regime, "links": way}
                row = {**row_of(at, keys, None), "every": resolve(settings).schedule.every}
                rows.append({**row, "plus_is_ahead_by": compare_plus(results, whole, {way: settings})})
    return rows


# Accuracy over link energy, in every regime, beside random links

_LOOKS: Mapping[str, Mapping[str, Any]] = {
    RANDOM: {"color": GREY, "marker": "o", "markersize": 5.0, "linewidth": 1.4},
    LEARNED: {"color": COLOURS["d-psgd"], "marker": "D", "markersize": 5.5, "linestyle": "", "fillstyle": "none"},
    PLUS: {"color": COLOURS[PLUS], "marker": "*", "markersize": 12.0, "linestyle": "", "zorder": 4},
}
_LEGEND = {
    RANDOM: "random links: for no more joules than the recipe’s (left), and as many (right)",
    LEARNED: LEARNED,
    PLUS: PLUS,
}
_NOTES = (
    "Means over servers and seeds, after the last round. Number: points above the line of random links at the same "
    "link energy; where joules bring less and less, what random links really reach lies a little above that line."
)


def link_panels(results: Results, claims: Claims, dataset: str, scale: Scale) -> list[Data]:
    """Accuracy over link energy: a panel for each size and regime, the two ways to draw at random joined by a line."""
    panels = []
    for servers in _sizes(scale):
        ways = list(ways_to_draw(dataset, servers))
        for regime in REGIMES:
            played = {way: point(dataset, PLUS, **changed) for name, way, changed in ways if name == regime}
            both = {way: played.pop(way) for way in (AS_DEAR, AS_MANY)}
            lines = [energy_line(results, RANDOM, both, "link_energy_mj")]
            lines += [energy_line(results, way, {way: settings}, "link_energy_mj") for way, settings in played.items()]
            known = [line for line in lines if line["x"]] if results.at(played[PLUS]) and lines[0]["x"] else []
            panels.append({"servers": servers, "regime": regime, "lines": known})
    return panels


def points_above_random(panel: Data) -> float | None:
    """Points between the recipe and the line of random links, where that has the recipe's link joules."""
    lines = {line["name"]: line for line in panel["lines"]}
    if PLUS not in lines or RANDOM not in lines:
        return None
    (x,), (y,), line = lines[PLUS]["x"], lines[PLUS]["y"], lines[RANDOM]
    return float(y - np.interp(x, line["x"], line["y"]))


def _title(data: Data) -> str:
    """How far above the line of random links, at the link joules of the recipe."""
    ahead = [gap for panel in data["panels"] if (gap := points_above_random(panel)) is not None]
    return f"{PLUS} ends {points_apart(ahead)} the line of random links" if ahead else "which links are drawn"


def _draw(data: Data, title: str) -> Picture:
    """A row of panels for each size, a column for each regime; all panels are as many points high."""
    from matplotlib.lines import Line2D

    import hatdfed.report.style as st
    from hatdfed_paper.drawing import legend_below, set_apart

    sizes = list(dict.fromkeys(panel["servers"] for panel in data["panels"]))
    columns = len(data["panels"]) // len(sizes)
    figure = st.page(WIDTH, 2.0 + 2.3 * len(sizes), title, subtitle(data, _NOTES))
    grid = figure.subplots(len(sizes), columns, squeeze=False)
    set_apart(figure)
    height = max(1.0, 1.5 * max(_extent(panel) for panel in data["panels"]))
    for place, (axes, panel) in enumerate(zip(grid.flat, data["panels"], strict=True)):
        st.frame(axes)
        heading = textwrap.fill(panel["regime"], 19) if place < columns else ""
        axes.set_title(heading, loc="left", size=st.SMALL, color=st.INK, family=st.FONT)
        is_first, is_last = place % columns == 0, place >= len(data["panels"]) - columns
        st.name_axes(axes, "", f"{panel['servers']} servers" if is_first else "")
        _draw_panel(axes, panel, height)
        if is_last and place % columns == columns // 2:
            st.name_axes(axes, f"Link energy (MJ); upwards: {ACCURACY[0].lower()}{ACCURACY[1:]}", "")
    shown = [name for name in _LOOKS if any(line["name"] == name for line in lines_of(data))]
    legend_below(figure, [Line2D([], [], **_LOOKS[name]) for name in shown], [_LEGEND[name] for name in shown])
    return figure


def _draw_panel(axes: Axes, panel: Data, height: float) -> None:
    from matplotlib.ticker import MaxNLocator

    import hatdfed.report.style as st

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
    gap = points_above_random(panel)
    recipe = next(line for line in panel["lines"] if line["name"] == PLUS)
    if gap is not None:
        text = axes.annotate(f"{gap:+.1f}", (recipe["x"][0], recipe["y"][0]), (0, 8), textcoords="offset points")
        text.set(ha="center", size=st.SMALL, color=COLOURS[PLUS], family=st.FONT, path_effects=st.HALO, weight="bold")


def _extent(panel: Data) -> float:
    values = [y for line in panel["lines"] for y in line["y"]]
    return max(values) - min(values) if values else 0.0


EXPERIMENT = Experiment(
    "plus_regimes",
    "Where it might matter which links are drawn",
    _points,
    BEYOND,
    seeds=5,
    tables=(
        Table(
            "plus_regimes",
            _rows,
            partial(comparison_markdown, keys=("dataset", "servers", "regime", "links", "every")),
        ),
    ),
    figures=(Figure("links", link_panels, _title, _draw),),
)
