"""`hat-dfed-plus` against every method as it is, in Table 1's settings and in larger fleets, and what it reaches.

The summary takes the settings of a data set and fleet together, against the baselines as they are, on equal footing and
dense. Differences are paired over seeds. *The best* rival is the one with the highest mean over seeds in a setting,
picked after the fact, which is in its favour. A setting counts only where all of the four baselines have been played.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from hatdfed.report.run_data import pareto_front
from hatdfed.runs.statistics import PairedDifference, paired_difference
from hatdfed.runs.summary import mean_and_deviation
from hatdfed_paper import price_map
from hatdfed_paper.claims import Claims
from hatdfed_paper.differences import Contest, percent_saved, points_gained
from hatdfed_paper.experiment import BEYOND, Experiment, Figure, Table
from hatdfed_paper.experiments.equal_footing import equal_footing, without_thrift
from hatdfed_paper.figure_parts import (
    ACCURACY,
    COLOURS,
    ENERGY,
    SETTING_NOTE,
    WIDTH,
    Data,
    energy_line,
    lines_of,
    points_apart,
    span,
    subtitle,
)
from hatdfed_paper.markdown import NOTHING, format_difference, table
from hatdfed_paper.plan import BASELINES, PLUS, Scale, Settings, point, setting_name, settings_of_table_1
from hatdfed_paper.plus_comparison import comparison_markdown, comparison_rows
from hatdfed_paper.results import Results
from hatdfed_paper.rows import Row, interval, interval_or_none

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Picture

AS_IT_IS, EQUAL, DENSE = "as it is", "equal footing", "dense"  # ways to play the other methods


def _points(dataset: str, scale: Scale) -> Iterator[Settings]:
    for setting, method in product(settings_of_table_1(), (*BASELINES, "hat-dfed", PLUS)):
        yield point(dataset, method, **setting)


def _large_points(dataset: str, scale: Scale) -> Iterator[Settings]:
    for servers, method in product(scale.servers[2:], (*BASELINES, "hat-dfed", PLUS)):
        yield point(dataset, method, servers=servers)


def _rows(results: Results, claims: Claims, scale: Scale) -> list[Row]:
    return comparison_rows(results, [*_FOUR_SETTINGS.all_points(scale), *_LARGE.all_points(scale)])


def _rival(way: str, method: str, dataset: str, servers: int, setting: Mapping[str, float]) -> Settings:
    """A method that is played in one of three ways."""
    given: Settings = {}
    if way == EQUAL:
        given = equal_footing(method, dataset, servers)
    elif way == DENSE:
        given = without_thrift(dataset)
    return point(dataset, method, servers=servers, **setting, **given)


# The summary: a row for each data set and number of servers


def summary_rows(results: Results, claims: Claims, scale: Scale) -> list[Row]:
    """A row for each data set and number of servers that has been played."""
    rows = []
    for dataset, servers in product(scale.datasets, dict.fromkeys((5, *scale.servers[2:]))):
        as_is, equal, dense = (_contests(results, dataset, servers, way) for way in (AS_IT_IS, EQUAL, DENSE))
        if as_is:
            row = {"dataset": dataset, "servers": servers, **_against_as_is(results, as_is)}
            rows.append(
                row | {"equal_footing": _against_equal(results, equal), "dense": _against_dense(results, dense)}
            )
    return rows


def _contests(results: Results, dataset: str, servers: int, way: str) -> list[Contest]:
    """The settings in which hat-dfed-plus and all four have runs; of larger fleets only the first is planned."""
    found = []
    for setting in settings_of_table_1() if servers == 5 else settings_of_table_1()[:1]:
        plus = point(dataset, PLUS, servers=servers, **setting)
        rivals = {name: _rival(way, name, dataset, servers, setting) for name in BASELINES}
        if set(results.at(plus)).intersection(*(results.at(each) for each in rivals.values())):
            found.append(Contest(plus, rivals))
    return found


def _against_as_is(results: Results, contests: Sequence[Contest]) -> Row:
    best = [_against_best(results, each) for each in contests]
    return {
        "settings": len(contests),
        "seeds": sorted(set.intersection(*(_shared_seeds(results, each) for each in contests))),
        "avg_accuracy_points": interval_or_none(points_gained(results, contests, "avg_accuracy")),
        "total_energy_percent": interval_or_none(percent_saved(results, contests, "total_energy_mj")),
        "link_energy_percent": interval_or_none(percent_saved(results, contests, "link_energy_mj")),
        "as_accurate_as_the_best": sum(each.mean >= 0 for _, each in best),
        "worst_over_best": sum(_worst_is_over_best(results, each) for each in contests),
        "behind": [_named(each, best[k]) for k, each in enumerate(contests) if best[k][1].mean < 0],
    }


def _against_equal(results: Results, contests: Sequence[Contest]) -> Row | None:
    """Against the best on equal footing: not below it, unless the whole interval is."""
    if not contests:
        return None
    best = [_against_best(results, each) for each in contests]
    below = [_named(each, found) for each, found in zip(contests, best, strict=True) if _is_below(found[1])]
    mean = interval_or_none(points_gained(results, contests, "avg_accuracy"))
    return {"settings": len(contests), "not_below": len(contests) - len(below), "below": below, "against_mean": mean}


def _against_dense(results: Results, contests: Sequence[Contest]) -> Row | None:
    """What is missing to the best of those that send whole models in every round."""
    if not contests:
        return None
    best = [_against_best(results, each) for each in contests]
    last = min(range(len(best)), key=lambda k: best[k][1].mean)
    rivals = [Contest(each.mine, {name: each.rivals[name]}) for each, (name, _) in zip(contests, best, strict=True)]
    return {
        "settings": len(contests),
        "largest_gap": _named(contests[last], best[last]),
        "mean": interval_or_none(points_gained(results, rivals, "avg_accuracy")),
    }


def _against_best(results: Results, contest: Contest) -> tuple[str, PairedDifference]:
    """The most accurate of the four, and what hat-dfed-plus has more than it, seed by seed."""
    found = {name: results.figures(each, "avg_accuracy") for name, each in contest.rivals.items()}
    best = max(found, key=lambda name: mean_and_deviation(list(found[name].values()))[0])
    return best, paired_difference(results.figures(contest.mine, "avg_accuracy"), found[best])


def _worst_is_over_best(results: Results, contest: Contest) -> bool:
    """Whether its worst server, in the mean over seeds, does as well as the best server of every baseline."""
    worst, _ = mean_and_deviation(list(results.figures(contest.mine, "worst_accuracy").values()))
    tops = [
        mean_and_deviation(list(results.figures(each, "best_accuracy").values()))[0] for each in contest.rivals.values()
    ]
    return worst >= max(tops)


def _shared_seeds(results: Results, contest: Contest) -> set[int]:
    return set(results.at(contest.mine)).intersection(*(results.at(each) for each in contest.rivals.values()))


def _named(contest: Contest, found: tuple[str, PairedDifference]) -> Row:
    return {"setting": setting_name(contest.mine), "method": found[0], **interval(found[1])}


def _is_below(difference: PairedDifference) -> bool:
    return difference.mean < 0 if difference.high is None else difference.high < 0


def summary_markdown(rows: Sequence[Row]) -> str:
    """What is reached, a line for each figure, a column for each data set and fleet."""
    headings = ["", *(f"{row['dataset']}, N = {row['servers']}" for row in rows)]
    lines = [(name, [words(row) for row in rows]) for name, words in _SUMMARY.items()]
    return table(headings, [[name, *cells] for name, cells in lines]) if rows else ""


def _count(count: int, row: Row) -> str:
    return f"{count} of {row['settings']}"


def _difference(found: Row | None, unit: str) -> str:
    return NOTHING if found is None else f"{format_difference(found, 1)} {unit}"


def _named_difference(found: Row | None) -> str:
    """A difference, against whom and where."""
    return NOTHING if found is None else f"{_difference(found, 'points')} against {found['method']}, {found['setting']}"


_SUMMARY: Mapping[str, Any] = {
    "accuracy, against the mean of the four": lambda row: _difference(row["avg_accuracy_points"], "points"),
    "total energy saved": lambda row: _difference(row["total_energy_percent"], "%"),
    "link energy saved": lambda row: _difference(row["link_energy_percent"], "%"),
    "settings: at least as accurate as the best of the four": lambda row: _count(row["as_accurate_as_the_best"], row),
    "settings: its worst server at least as good as the best server of all four": (
        lambda row: _count(row["worst_over_best"], row)
    ),
    "equal footing, settings: not distinguishably below the best": (
        lambda row: _count(row["equal_footing"]["not_below"], row["equal_footing"]) if row["equal_footing"] else NOTHING
    ),
    "equal footing, against the mean of the four": (
        lambda row: _difference((row["equal_footing"] or {}).get("against_mean"), "points")
    ),
    "dense, against the best: mean over settings": lambda row: _difference((row["dense"] or {}).get("mean"), "points"),
    "dense, against the best: largest gap": lambda row: _named_difference((row["dense"] or {}).get("largest_gap")),
    "seeds": lambda row: str(len(row["seeds"])),
}


# What accuracy costs: the front

_MARKS = {AS_IT_IS: "o", EQUAL: "D", DENSE: "s", PLUS: "*"}
_TAGS = {
    AS_IT_IS: "as they are",
    EQUAL: "all parts but its links,\nas few link joules",
    DENSE: "with its loss and end,\nfloat32, every round",
    PLUS: PLUS,
}
_MEANS = "Means over servers and seeds, after the last round. Stairs: no other point beats these at both."
_TICKS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500)  # MJ


def front_panels(results: Results, claims: Claims, dataset: str, scale: Scale) -> list[Data]:
    """Test accuracy over total energy: a panel for each setting, a line for each way to play the methods.

    `front` names the points, by line and place in it, that no other beats at both. No panel where hat-dfed-plus has
    not been played.
    """
    panels = []
    for setting in settings_of_table_1():
        plus = point(dataset, PLUS, **setting)
        ways = {}
        if results.at(plus):
            ways = {
                way: {name: _rival(way, name, dataset, 5, setting) for name in names}
                for way, names in (
                    (AS_IT_IS, (*BASELINES, "hat-dfed")),
                    (EQUAL, (*BASELINES, "hat-dfed")),
                    (DENSE, BASELINES),
                )
            } | {PLUS: {PLUS: plus}}
        drawn = [energy_line(results, way, played, "total_energy_mj") for way, played in ways.items()]
        lines = [line for line in drawn if line["x"]]
        panels.append({"setting": list(setting.values()), "lines": lines, "front": _front(lines)})
    return panels


def _front(lines: Sequence[Data]) -> list[list[int]]:
    places = [[index, place] for index, line in enumerate(lines) for place in range(len(line["x"]))]
    spots = np.array([[lines[index]["x"][place], lines[index]["y"][place]] for index, place in places])
    return [places[each] for each in pareto_front(spots)] if places else []


def _title(data: Data) -> str:
    """How far above the baselines as they are, and what share of their energy."""
    ahead, share = [], []
    for panel in data["panels"]:
        ways = {line["name"]: line for line in panel["lines"]}
        if PLUS in ways and AS_IT_IS in ways:
            rivals = ways[AS_IT_IS]
            places = [place for place, name in enumerate(rivals["methods"]) if name in BASELINES]
            ahead += [ways[PLUS]["y"][0] - rivals["y"][place] for place in places]
            share += [100 * ways[PLUS]["x"][0] / rivals["x"][place] for place in places]
    if not ahead:
        return "what accuracy costs"
    return f"{PLUS} ends {points_apart(ahead)} the baselines with {span(share, '.0f')} % of their energy"


def _draw(data: Data, title: str) -> Picture:
    """Four panels of accuracy over energy: a mark for each method, a shape for each way to play it."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    import hatdfed.report.style as st
    from hatdfed_paper.drawing import four_panels

    figure = st.page(WIDTH, 7.4, title, subtitle(data, _MEANS, SETTING_NOTE))
    panels = four_panels(figure, data, f"{ENERGY}, logarithmic", ACCURACY)
    for axes, panel in panels:
        for line in panel["lines"]:
            for name, x, y in zip(line["methods"], line["x"], line["y"], strict=True):
                axes.plot(x, y, linestyle="", **_look(line["name"], name))
            _draw_tag(axes, line)
        _draw_stairs(axes, panel)
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
    _draw_legend(figure, lines)
    return figure


def _look(way: str, method: str) -> dict[str, Any]:
    import hatdfed.report.style as st

    size = {PLUS: 13.0, EQUAL: 5.5}.get(way, 6.5)
    return {
        "color": COLOURS.get(method, st.INK), "marker": _MARKS[way], "markersize": size, "markeredgecolor": st.PAPER,
        "markeredgewidth": 0.6, "zorder": 4 if way == PLUS else 3,
    }  # fmt: skip


def _draw_tag(axes: Axes, line: Data) -> None:
    """What a cloud of marks is: above it, or below those that lie below others."""
    import hatdfed.report.style as st

    is_low = line["name"] in (AS_IT_IS, EQUAL)
    x = float(np.exp(np.mean(np.log(line["x"]))))
    y = min(line["y"]) if is_low else max(line["y"])
    text = axes.annotate(_TAGS[line["name"]], (x, y), (0, -9 if is_low else 9), textcoords="offset points")
    text.set(ha="center", va="top" if is_low else "bottom", size=st.SMALL, family=st.FONT, linespacing=1.15)
    text.set(color=st.INK, path_effects=st.HALO, weight="bold" if line["name"] == PLUS else "normal", zorder=5)


def _draw_stairs(axes: Axes, panel: Data) -> None:
    """The Pareto front, on to the right of its last point."""
    spots = [(panel["lines"][line]["x"][place], panel["lines"][line]["y"][place]) for line, place in panel["front"]]
    if spots:
        x, y = zip(*spots, (1e6, spots[-1][1]), strict=True)
        axes.step(x, y, where="post", color="#9AA3AD", linewidth=1.1, zorder=1)


def _draw_legend(figure: Picture, lines: Sequence[Data]) -> None:
    """Colours of the methods; the shapes are named where they stand."""
    from matplotlib.lines import Line2D

    from hatdfed_paper.drawing import legend_below

    names = list(dict.fromkeys(name for line in lines for name in line["methods"]))
    handles = [Line2D([], [], linestyle="", **_look(PLUS if name == PLUS else AS_IT_IS, name)) for name in names]
    legend_below(figure, handles, names, columns=len(names))


_FOUR_SETTINGS = Experiment(
    "plus",
    "hat-dfed-plus against every method as it is",
    _points,
    BEYOND,
    tables=(
        Table("plus_summary", summary_rows, summary_markdown),
        Table("plus", _rows, comparison_markdown),
        price_map.SPLIT_TABLE,
        price_map.PRICE_TABLE,
    ),
    figures=(Figure("front", front_panels, _title, _draw), price_map.PRICE_FIGURE),
)
_LARGE = Experiment("plus_large", "The same with 20 and 50 servers", _large_points, BEYOND, seeds=5)
EXPERIMENTS = (_FOUR_SETTINGS, _LARGE)
