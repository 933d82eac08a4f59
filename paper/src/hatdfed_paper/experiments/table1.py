"""RQ1, Table 1: accuracy and energy of `hat-dfed` against the baselines in four settings."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hatdfed.runs.statistics import PairedDifference
from hatdfed.runs.summary import mean_and_deviation
from hatdfed_paper import regret
from hatdfed_paper.claims import Claims
from hatdfed_paper.differences import Contest, percent_saved, points_gained
from hatdfed_paper.expected_energy import expected_energy, expected_energy_markdown
from hatdfed_paper.experiment import Experiment, Figure, Table
from hatdfed_paper.figure_parts import (
    COLOURS,
    GREY,
    OURS,
    SETTING_NOTE,
    WIDTH,
    Data,
    curves_by_round,
    drop_single_points,
    lines_of,
    points_apart,
    span,
    subtitle,
)
from hatdfed_paper.markdown import metrics_markdown
from hatdfed_paper.plan import BASELINES, HARD, SETTING, Scale, Settings, point, settings_of_table_1
from hatdfed_paper.results import Results
from hatdfed_paper.rows import Row, metric_rows
from hatdfed_paper.verdict_rules import NEAR_SHARE, Verdict, count_near, is_near, judge_direction, judge_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Picture

METHODS = (*BASELINES, OURS, "full", "local")
NEAR_POINTS = 3.0  # of the published average accuracy
_DASHES: dict[str, Any] = {"full": (0, (5, 1.5)), "local": (0, (1.2, 1.2))}
_MEANS = "Means over servers and seeds; numbers: last round."


def _points(dataset: str, scale: Scale) -> Iterator[Settings]:
    for setting, method in product(settings_of_table_1(), METHODS):
        yield point(dataset, method, **setting)


def _rows(results: Results, claims: Claims, scale: Scale) -> list[Row]:
    keys = ("dataset", *SETTING, "method")
    return metric_rows(results, EXPERIMENT.all_points(scale), keys, claims, "table_1")


def _energy_rows(results: Results, claims: Claims, scale: Scale) -> list[Row]:
    return expected_energy(results, EXPERIMENT.all_points(scale), scale)


# What the abstract and the text say


def contests(scale: Scale, rivals: Sequence[str] = BASELINES) -> list[Contest]:
    """`hat-dfed` against these methods, on every data set and in every setting."""
    return [
        Contest(point(dataset, OURS, **setting), {name: point(dataset, name, **setting) for name in rivals})
        for dataset in scale.datasets
        for setting in settings_of_table_1()
    ]


def _headline(results: Results, scale: Scale) -> dict[str, Any]:
    everyone = contests(scale)
    one_by_one = {name: contests(scale, (name,)) for name in BASELINES}
    hardest = [each for each in everyone if all(each.mine[name] == value for name, value in HARD.items())]
    return {
        "avg_accuracy_gain_points": points_gained(results, everyone, "avg_accuracy"),
        "total_energy_saving_percent": percent_saved(results, everyone, "total_energy_mj"),
        "link_energy_saving_percent": percent_saved(results, everyone, "link_energy_mj"),
        "best_accuracy_gain_points": points_gained(results, everyone, "best_accuracy"),
        "worst_accuracy_gain_points": points_gained(results, everyone, "worst_accuracy"),
        "accuracy_gain_over": {n: points_gained(results, each, "avg_accuracy") for n, each in one_by_one.items()},
        "total_energy_saving_over_percent": {
            name: percent_saved(results, each, "total_energy_mj") for name, each in one_by_one.items()
        },
        "accuracy_gain_at_lambda_03_rho_05": points_gained(results, hardest, "avg_accuracy"),
    }


def _verdicts(results: Results, claims: Claims, scale: Scale) -> Iterator[Verdict]:
    ours, theirs = _headline(results, scale), claims.headline
    for key, words, unit in (
        ("avg_accuracy_gain_points", "More accurate than the mean of the baselines", "points"),
        ("best_accuracy_gain_points", "Best server more accurate", "points"),
        ("worst_accuracy_gain_points", "Worst server more accurate", "points"),
        ("accuracy_gain_at_lambda_03_rho_05", "Gain at λ 0.3, ρ 0.5", "points"),
        ("total_energy_saving_percent", "Less total energy than the baselines, on average", "%"),
        ("link_energy_saving_percent", "Less link energy than the baselines, on average", "%"),
    ):
        yield from judge_size("RQ1", words, ours[key], theirs[key], unit)
    for key, words, unit in (
        ("accuracy_gain_over", "More accurate than", "points"),
        ("total_energy_saving_over_percent", "Less total energy than", "%"),
    ):
        for method in BASELINES:
            yield from judge_size("RQ1", f"{words} {method}", ours[key][method], theirs[key][method], unit)
    spread = points_gained(results, contests(scale), "std_accuracy")
    closer = None if spread is None else _negative(spread)
    words = "Accuracies of its servers lie closer together than those of the baselines"
    yield from judge_direction("RQ1", words, closer, _published_spread(claims, scale), "points of deviation")


def _negative(ours: PairedDifference) -> PairedDifference:
    low, high = (None if end is None else -end for end in (ours.high, ours.low))
    return PairedDifference(-ours.mean, low, high, ours.n)


def _published_spread(claims: Claims, scale: Scale) -> str:
    """In how many settings the paper's own table has hat-dfed below every baseline."""
    below, all_of_them = 0, 0
    for contest in contests(scale):
        mine = claims.row("table_1", contest.mine)
        theirs = [claims.row("table_1", each) for each in contest.rivals.values()]
        known = [row["var_accuracy"][0] for row in theirs if row is not None]
        if mine is not None and len(known) == len(theirs):
            all_of_them += 1
            below += all(mine["var_accuracy"][0] <= each for each in known)
    return f"least or equal in {below} of {all_of_them} settings"


# Whether our world is the paper's


class _Level(NamedTuple):
    """A row of Table 1: ours and the published one."""

    place: tuple[Any, ...]
    method: str
    ours: Mapping[str, float]
    published: Mapping[str, float]
    seeds: int


def _checks(results: Results, claims: Claims, scale: Scale) -> Iterator[Verdict]:
    """Levels of accuracy and energy."""
    levels = list(_levels(results, claims, scale))
    seeds = min((level.seeds for level in levels), default=0)
    words = f"The four baselines' mean accuracy, within {NEAR_POINTS:g} points of the published"
    yield from count_near(words, list(_near_accuracies(levels)), "settings", seeds)
    yield from _check_price_list(_energy_rows(results, claims, scale))
    near = [is_near(level.ours["total_energy_mj"], level.published["total_energy_mj"]) for level in levels]
    words = f"Total energy of the five methods, within {NEAR_SHARE:.0%} of the published"
    yield from count_near(words, near, "rows", seeds)


def _levels(results: Results, claims: Claims, scale: Scale) -> Iterator[_Level]:
    names = ("avg_accuracy", "total_energy_mj")
    for each in EXPERIMENT.all_points(scale):
        published, at = claims.row("table_1", each), results.at(each)
        if published is not None and at:
            ours = {name: mean_and_deviation(list(results.figures(each, name).values()))[0] for name in names}
            place = (each["dataset"], *(each[name] for name in SETTING))
            yield _Level(place, each["method"], ours, {name: published[name][0] for name in names}, len(at))


def _check_price_list(rows: Sequence[Row]) -> Iterator[Verdict]:
    kinds = ("link_energy_mj_deviation_percent", "total_energy_mj_deviation_percent")
    near = [abs(row[kind]) <= 100 * NEAR_SHARE for row in rows for kind in kinds]
    words = f"Our energies, within {NEAR_SHARE:.0%} of what the price list should come to"
    yield from count_near(words, near, "energies", min((len(row["seeds"]) for row in rows), default=0))


def _near_accuracies(levels: Sequence[_Level]) -> Iterator[bool]:
    """For every place in which all four baselines are known."""
    for place in dict.fromkeys(level.place for level in levels):
        four = [level for level in levels if level.place == place and level.method in BASELINES]
        if len(four) == len(BASELINES):
            distance = sum(level.ours["avg_accuracy"] - level.published["avg_accuracy"] for level in four) / len(four)
            yield abs(distance) <= NEAR_POINTS


# Learning curves


def _curves(x: str, results: Results, claims: Claims, dataset: str, scale: Scale) -> list[Data]:
    """Validation accuracy over rounds, or over energy so far: a panel for each setting, a line for each method."""
    panels = []
    for setting in settings_of_table_1():
        lines = []
        for method in METHODS:
            runs = results.at(point(dataset, method, **setting))
            xs, ys = (
                [statistics.fmean(values) for values in curves_by_round(runs, name).values()]
                for name in (x, "accuracy")
            )
            lines.append({"name": method, "seeds": len(runs), "x": xs, "y": ys})
        panels.append({"setting": list(setting.values()), "lines": lines})
    return drop_single_points(panels)


def _title_over_rounds(data: Data) -> str:
    """Where the baselines end, seen from hat-dfed."""
    ahead = [line["y"][-1] - ours["y"][-1] for ours, line in _pairs(data)]
    return f"baselines end {points_apart(ahead)} {OURS}" if ahead else "validation accuracy over rounds"


def _title_over_energy(data: Data) -> str:
    """The same where they have spent as much as hat-dfed at its end."""
    ahead = [float(np.interp(ours["x"][-1], line["x"], line["y"])) - ours["y"][-1] for ours, line in _pairs(data)]
    if not ahead:
        return "validation accuracy over energy"
    return f"at {OURS}’s energy, baselines are {points_apart(ahead)} it"


def _pairs(data: Data) -> list[tuple[Data, Data]]:
    """hat-dfed with every baseline, in every panel."""
    panels = [{line["name"]: line for line in panel["lines"]} for panel in data["panels"]]
    return [(lines[OURS], lines[name]) for lines in panels if OURS in lines for name in BASELINES if name in lines]


def _draw_curves(data: Data, title: str) -> Picture:
    """Four panels of accuracy over rounds or energy, each with a legend in the order in which the lines end."""
    from matplotlib.ticker import MaxNLocator

    import hatdfed.report.style as st
    from hatdfed_paper.drawing import four_panels

    is_over_rounds = data["kind"] == "accuracy"
    notes = [_MEANS, SETTING_NOTE] if is_over_rounds else [_MEANS, *_energy_notes(data), SETTING_NOTE]
    figure = st.page(WIDTH, 6.6, title, subtitle(data, *notes))
    over = "Round" if is_over_rounds else "Energy spent so far (MJ)"
    panels = four_panels(figure, data, over, "Validation accuracy (%)")
    for axes, panel in panels:
        ranked = sorted(panel["lines"], key=lambda line: -line["y"][-1])
        handles = [_draw_curve(axes, line, has_end=not is_over_rounds) for line in ranked]
        if ranked:
            names = [f"{line['name']}  {line['y'][-1]:.1f}" for line in ranked]
            st.legend(axes, handles, names, loc="center left", bbox_to_anchor=(1.01, 0.5), handlelength=1.7)
    axes = panels[0][0]
    # From a fifth of each line on: the axis leaves out the steep beginning, or ends would look alike.
    st.percent_axis(axes, np.concatenate([line["y"][len(line["y"]) // 5 :] for line in lines_of(data)]))
    if is_over_rounds:
        st.round_axis(axes, 0, max(line["x"][-1] for line in lines_of(data)))
    else:
        axes.set_xlim(0, 1.04 * _dearest_rival(data))
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=st.STEPS, integer=is_over_rounds))
    return figure


def _draw_curve(axes: Axes, line: Data, *, has_end: bool) -> Any:
    """A method's line, with a dot where its last round is; hat-dfed's is thick, with a hair line at what it spent."""
    name = line["name"]
    (drawn,) = axes.plot(line["x"], line["y"], color=COLOURS.get(name, GREY), linestyle=_DASHES.get(name, "-"))
    drawn.set(linewidth=2.4 if name == OURS else 1.3, zorder=3 if name == OURS else 2)
    if has_end:
        drawn.set(marker="o", markersize=5.5 if name == OURS else 4, markevery=[-1])
        if name == OURS:
            axes.axvline(line["x"][-1], color=COLOURS[OURS], linewidth=0.7, zorder=1)
    return drawn


def _energy_notes(data: Data) -> list[str]:
    """What the hair line is, and where the line ends that leaves the axes."""
    notes = [f"Vertical line: all that {OURS} spends."] if any(line["name"] == OURS for line in lines_of(data)) else []
    beyond = [line for line in lines_of(data) if line["x"][-1] > 1.04 * _dearest_rival(data)]
    for name in dict.fromkeys(line["name"] for line in beyond):
        ends = span([line["x"][-1] for line in beyond if line["name"] == name], ".2g")
        notes.append(f"{name} ends beyond the axis, at {ends} MJ.")
    return notes


def _dearest_rival(data: Data) -> float:
    """Where the energy axis ends: with all methods but those that are bounds, as far as there are others."""
    lines = lines_of(data)
    rivals = [line for line in lines if line["name"] in COLOURS]
    return float(max(line["x"][-1] for line in rivals or lines))


EXPERIMENT = Experiment(
    "table1",
    "RQ1: accuracy and energy against the baselines in four settings",
    _points,
    tables=(
        Table("table_1", _rows, metrics_markdown),
        regret.BANDIT_TABLE,
        Table("energy", _energy_rows, expected_energy_markdown),
    ),
    figures=(
        Figure("accuracy", partial(_curves, "round"), _title_over_rounds, _draw_curves),
        Figure("accuracy-vs-energy", partial(_curves, "total_mj"), _title_over_energy, _draw_curves),
        regret.REGRET_FIGURE,
    ),
    headline=_headline,
    checks=_checks,
    verdicts=_verdicts,
)
