"""Accuracy against joules, method by method: every way to draw links, over degree and interval, with the same parts.

All have the loss, cool-down, finish and codec of `hat-dfed-plus-0.1`. A method spends less by fewer links in a round
(degree) or by fewer rounds with links (interval), whichever serves it better: its *frontier* are those of its points
that no other of its points beats at both joules and validation accuracy, in the mean over seeds. The test set has no
say in it: of many points the best on the test set is too good by chance, and more so for the method with more points.
Two methods are compared at equal joules by test accuracy, each interpolated along its own frontier, seed by seed. A
seed counts for a method when all of its points have been played with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hatdfed.report.run_data import pareto_front
from hatdfed.setup.layers import merge_layers, resolve
from hatdfed.setup.methods import method_named
from hatdfed.setup.run_identity import Since, without_newer
from hatdfed_paper.claims import Claims
from hatdfed_paper.differences import BySeed, mean_over_seeds
from hatdfed_paper.expected_energy import expected_link_joules
from hatdfed_paper.experiment import BEYOND, Experiment, Figure, Table
from hatdfed_paper.experiments.equal_footing import PARTS
from hatdfed_paper.figure_parts import ACCURACY, COLOURS, GREY, WIDTH, Data, lines_of, subtitle
from hatdfed_paper.markdown import NOTHING, format_difference, table
from hatdfed_paper.plan import PLUS, Scale, Settings, point
from hatdfed_paper.protocol import Protocol, decide
from hatdfed_paper.results import Results
from hatdfed_paper.rows import Row, interval_or_none, pair

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Picture

DEGREES, INTERVALS = (1, 2, 4), (1, 4, 16)
RANDOM, RIVAL, NEWEST = "random-regular", "sgp", "hat-dfed-plus"
JOULES = {"link_energy_mj": "link", "total_energy_mj": "total"}
_INT4_SHARE = 4.25 / 32  # of a model's bits: 4 for a number, and 16 for every 64 of them
# How a method is told its degree; None: it has one degree by definition.
_DEGREE = {
    RANDOM: "degree",
    RIVAL: "peers",
    "one-peer-exponential": None,
    "base-2": None,
    "el-local": "fanout",
    "el-oracle": "degree",
    "d-psgd": None,
    PLUS: "degree",
    NEWEST: "degree",
}
_NAMES = {"d-psgd": "ring", RANDOM: "random regular"}


def methods() -> list[str]:
    """Everybody who is compared; `hat-dfed-plus` only while it is another recipe than that of version 0.1."""
    is_another = method_named(NEWEST).settings != method_named(PLUS).settings
    return [name for name in _DEGREE if name != NEWEST or is_another]


def fleets(scale: Scale) -> tuple[int, ...]:
    """Numbers of servers."""
    return scale.fleets or scale.servers[:1]


def frontier_points(dataset: str, servers: int, method: str) -> Iterator[tuple[str, Settings]]:
    """The points of a method, with what tells them apart."""
    name, own = (PLUS, {"policy": {"thrift": 0.0}}) if method == RANDOM else (method, {})
    for degree, every in product(DEGREES if _DEGREE[method] else (None,), INTERVALS):
        if method == "el-oracle" and servers * (degree or 0) % 2:
            continue  # no graph has an odd number of servers of odd degree
        given = {} if degree is None else {"policy": {_DEGREE[method]: degree}}
        settings = merge_layers(own, given, _same_parts(dataset, servers, every))
        words = f"every {every}" if degree is None else f"degree {degree}, every {every}"
        yield words, point(dataset, name, servers=servers, **settings)
    if method in (PLUS, NEWEST):
        yield "as it is", point(dataset, method, servers=servers)
        if (budget := _meeting_joules(dataset, servers)) is not None:
            settings = {"policy": {"degree": None}, "schedule": {"every": 1, "budget_joules": budget}}
            yield "within a budget", point(dataset, method, servers=servers, **settings)


def _same_parts(dataset: str, servers: int, every: int) -> dict[str, Any]:
    plus = without_newer(resolve({"method": PLUS, "dataset": dataset, "servers": servers}), Since.V0_1)
    return merge_layers({name: plus[name] for name in PARTS}, {"schedule": {"every": every}})


def _meeting_joules(dataset: str, servers: int) -> float | None:
    """What one model for each server in each round costs on links; None where the recipe as it is spends no more.

    Methods of degree 1 cannot spend what the recipe spends in larger fleets. There the recipe is also played within
    their joules (`schedule.budget_joules`), so that both have been played at the joules at which they are compared.
    """
    plus = resolve({"method": PLUS, "dataset": dataset, "servers": servers})
    if servers < 20 or not isinstance(plus.energy.model_bits, (int, float)):
        return None
    rounds, finish = plus.rounds - plus.schedule.finish_rounds, plus.schedule.finish_rounds * (servers - 1)
    return round(servers * (rounds + finish) * expected_link_joules(plus) * _INT4_SHARE)


def _points(dataset: str, scale: Scale) -> Iterator[Settings]:
    for servers, method in product(fleets(scale), methods()):
        for _, settings in frontier_points(dataset, servers, method):
            yield settings


def _decisive(dataset: str, scale: Scale) -> Iterator[Settings]:
    for servers, method in product(fleets(scale), (PLUS, RIVAL)):
        for _, settings in frontier_points(dataset, servers, method):
            yield settings


# At equal joules


class _Played(NamedTuple):
    """What was measured of a method: a row for each of its points, a column for each seed that all of them have."""

    seeds: list[int]
    joules: NDArray[np.float64]
    test: NDArray[np.float64]
    validation: NDArray[np.float64]


def _played(results: Results, dataset: str, servers: int, method: str, energy: str) -> _Played:
    points = [each for _, each in frontier_points(dataset, servers, method)]
    figures = {
        name: [results.figures(each, name) for each in points]
        for name in (energy, "avg_accuracy", "validation_accuracy")
    }
    seeds = sorted(set.intersection(*(set(by_seed) for rows in figures.values() for by_seed in rows)))
    tables = (np.array([[by_seed[seed] for seed in seeds] for by_seed in rows]) for rows in figures.values())
    return _Played(seeds, *tables)


def front_of(joules: NDArray[np.float64], validation: NDArray[np.float64]) -> list[int]:
    """Which points of a method, by row, no other beats at both joules and validation accuracy, means over seeds."""
    return pareto_front(np.stack([joules.mean(axis=1), validation.mean(axis=1)], axis=1))


def accuracy_at(results: Results, dataset: str, servers: int, method: str, energy: str, joules: BySeed) -> BySeed:
    """Test accuracy of a method at given joules, seed by seed, along its own frontier; without seeds out of its range.

    Beyond the dearest point of its frontier a method leaves joules unspent.
    """
    played = _played(results, dataset, servers, method, energy)
    if not played.seeds:
        return {}
    front = front_of(played.joules, played.validation)
    found = {}
    for column, seed in enumerate(played.seeds):
        wanted, spent, seen = joules.get(seed), played.joules[:, column], played.test[:, column]
        if wanted is not None and spent.min() <= wanted <= spent.max():
            order = sorted(front, key=lambda row: spent[row])
            found[seed] = float(np.interp(wanted, spent[order], seen[order]))
    return found


def common_joules(results: Results, dataset: str, servers: int, rival: str, energy: str) -> BySeed:
    """Where two methods meet, seed by seed: the recipe's joules as it is, or the nearest that both can spend."""
    found = {}
    as_it_is = results.figures(point(dataset, PLUS, servers=servers), energy)
    played = [_played(results, dataset, servers, name, energy) for name in (PLUS, rival)]
    for seed in sorted(set(played[0].seeds) & set(played[1].seeds)):
        spent = [each.joules[:, each.seeds.index(seed)] for each in played]
        low, high = max(each.min() for each in spent), min(each.max() for each in spent)
        if low <= high:
            found[seed] = float(min(max(as_it_is[seed], low), high))
    return found


def lead(results: Results, dataset: str, servers: int, rival: str, energy: str) -> dict[int, float]:
    """Points that the recipe has more than a rival at equal joules, by seed."""
    joules = common_joules(results, dataset, servers, rival, energy)
    mine, theirs = (accuracy_at(results, dataset, servers, name, energy, joules) for name in (PLUS, rival))
    return {seed: mine[seed] - theirs[seed] for seed in mine.keys() & theirs.keys()}


def _rows(results: Results, claims: Claims, scale: Scale) -> list[Row]:
    """In every place, at equal joules of either kind: what the recipe has more than each rival."""
    rows = []
    for energy, dataset, servers in product(JOULES, scale.datasets, fleets(scale)):
        for rival in (name for name in methods() if name != PLUS):
            ahead = lead(results, dataset, servers, rival, energy)
            if ahead:
                joules = common_joules(results, dataset, servers, rival, energy)
                row = {"dataset": dataset, "servers": servers, "energy": JOULES[energy], "rival": _named(rival)}
                row |= {"megajoules": pair(joules[seed] for seed in ahead), "seeds": sorted(ahead)}
                rows.append({**row, "plus_is_ahead_by": interval_or_none(mean_over_seeds([ahead])), "verdict": None})
    return [*rows, *_pooled(results, scale)] if rows else []


def _pooled(results: Results, scale: Scale) -> list[Row]:
    """The one comparison of the plan: against `sgp`, mean over places, seed by seed."""
    rows = []
    for energy, words in JOULES.items():
        places = [lead(results, d, n, RIVAL, energy) for d, n in product(scale.datasets, fleets(scale))]
        difference = mean_over_seeds(places)
        if difference is not None:
            seeds = sorted(set.intersection(*(set(place) for place in places)))
            row = {"dataset": "all", "servers": 0, "energy": words, "rival": RIVAL, "megajoules": None}
            verdict = decide(difference, seeds, EXPERIMENT.planned_seeds(scale)) if words == "link" else None
            rows.append({**row, "seeds": seeds, "plus_is_ahead_by": interval_or_none(difference), "verdict": verdict})
    return rows


def _markdown(rows: Sequence[Row]) -> str:
    headings = ["data set", "N", "at equal", "rival", "MJ", "hat-dfed-plus-0.1 is ahead, points", "verdict", "seeds"]
    cells = [
        [
            row["dataset"], str(row["servers"] or "all"), f"{row['energy']} joules", row["rival"],
            f"{row['megajoules'][0]:.3g}" if row["megajoules"] else NOTHING,
            format_difference(row["plus_is_ahead_by"], 2), row["verdict"] or NOTHING, str(len(row["seeds"])),
        ]
        for row in rows
    ]  # fmt: skip
    return table(headings, cells)


def _named(method: str) -> str:
    return _NAMES.get(method, method)


# One picture with every rival

_LOOKS = {
    RANDOM: (GREY, "o"), RIVAL: (COLOURS["sgp"], "s"), "one-peer-exponential": ("#E69F00", "^"),
    "base-2": ("#009E73", "v"), "el-local": ("#56B4E9", "P"), "el-oracle": ("#0072B2", "X"),
    "d-psgd": ("#000000", "D"), PLUS: (COLOURS[PLUS], "*"), NEWEST: ("#D55E00", "*"),
}  # fmt: skip


def _panels(results: Results, claims: Claims, dataset: str, scale: Scale) -> list[Data]:
    """A row of panels for link and for total joules, a column for each fleet, a line for each method's frontier."""
    panels = []
    for energy, servers in product(JOULES, fleets(scale)):
        lines = []
        for method in methods():
            played = _played(results, dataset, servers, method, energy)
            if played.seeds:
                front = front_of(played.joules, played.validation)
                x, y = (figures.mean(axis=1)[front].tolist() for figures in (played.joules, played.test))
                lines.append({"name": method, "x": x, "y": y, "seeds": len(played.seeds), "points": len(played.joules)})
        panels.append({"energy": JOULES[energy], "servers": servers, "lines": lines})
    return panels


def _title(data: Data) -> str:
    """Who is highest at most joules is for the table to say; here only what is seen."""
    names = {line["name"] for line in lines_of(data)}
    return f"accuracy against joules of {len(names)} ways to draw links, each at its best degree and interval"


_NOTES = "Means over servers and seeds, after the last round; same loss, cool-down, finish and codec for all."


def _draw(data: Data, title: str) -> Picture:
    """A panel for each kind of joules and fleet."""
    from matplotlib.lines import Line2D

    import hatdfed.report.style as st
    from hatdfed_paper.drawing import legend_below, set_apart

    sizes = list(dict.fromkeys(panel["servers"] for panel in data["panels"]))
    figure = st.page(WIDTH, 7.6, title, subtitle(data, _NOTES))
    grid = figure.subplots(2, len(sizes), squeeze=False)
    set_apart(figure)
    for place, (axes, panel) in enumerate(zip(grid.flat, data["panels"], strict=True)):
        st.frame(axes)
        axes.set_title(f"{panel['servers']} servers", loc="left", size=st.SMALL, color=st.INK, family=st.FONT)
        st.name_axes(axes, f"{panel['energy'].capitalize()} energy (MJ)", ACCURACY if place % len(sizes) == 0 else "")
        _draw_panel(axes, panel)
    shown = [name for name in _LOOKS if any(line["name"] == name for line in lines_of(data))]
    legend_below(figure, [Line2D([], [], **_look(name)) for name in shown], [_named(name) for name in shown], columns=4)
    return figure


def _draw_panel(axes: Axes, panel: Data) -> None:
    import hatdfed.report.style as st

    if not panel["lines"]:
        st.notice(axes, "not run")
        return
    for line in panel["lines"]:
        axes.plot(line["x"], line["y"], **_look(line["name"]))
    if panel["energy"] == "link":
        axes.set_xscale("log")


def _look(method: str) -> Mapping[str, Any]:
    colour, marker = _LOOKS[method]
    is_ours = method in (PLUS, NEWEST)
    return {
        "color": colour, "marker": marker, "markersize": 10.0 if is_ours else 5.0, "linewidth": 2.0 if is_ours else 1.2,
        "zorder": 4 if is_ours else 2,
    }  # fmt: skip


EXPERIMENT = Experiment(
    "frontier",
    "Accuracy against joules over degree and interval, with the same parts for all",
    _points,
    BEYOND,
    fleet_seeds={5: range(250, 260), 20: range(250, 255), 50: range(250, 255)},
    protocol=Protocol(
        comparison=f"{PLUS} against {RIVAL}: test accuracy at equal link joules (the recipe's as it is, or the nearest "
        "that both can spend), each interpolated along its own frontier, whose points validation accuracy picks; mean "
        "over data sets and fleets, seed by seed",
        null="the mean difference is 0 points or less",
        rule="reproduced if the 95 % interval over the seeds that all places have lies above 0; otherwise not. "
        "All other rows of the table are secondary; their intervals are not corrected for their number.",
    ),
    known="plus_equal, plus_equal_large and plus_regimes, on seeds 0–9: leads of at most about a point over sgp, which "
    "spent fewer link joules with 20 and 50 servers; the same frontier on digits, seeds 20–24, with five and 20 "
    "servers: no distinguishable lead over sgp; none on these seeds",
    decisive=_decisive,
    tables=(Table("frontier", _rows, _markdown),),
    figures=(Figure("frontier", _panels, _title, _draw),),
)
