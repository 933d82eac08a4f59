"""What the bandit of `hat-dfed` did in the runs of Table 1: its regret beside two bounds, and its probabilities.

The bounds are the printed one, Eq. (25), and the one that holds (docs/theory.md).
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hatdfed.core.coordinator import links_in_budget
from hatdfed.core.policies.link_bandit import theorem_learning_rate
from hatdfed.core.regret import printed_bound, standard_bound
from hatdfed.runs.statistics import paired_or_none
from hatdfed.setup.methods import method_named
from hatdfed_paper.claims import Claims
from hatdfed_paper.experiment import Figure, Table
from hatdfed_paper.figure_parts import (
    COLOURS,
    OURS,
    SETTING_NOTE,
    WIDTH,
    Data,
    curves_by_round,
    drop_single_points,
    lines_of,
    span,
    subtitle,
    whole,
)
from hatdfed_paper.markdown import NOTHING, format_difference, format_setting, table
from hatdfed_paper.plan import SETTING, Scale, Settings, point, settings_of_table_1
from hatdfed_paper.results import Record, Results
from hatdfed_paper.rows import Row, interval, pair

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Picture

_BOUNDS = {"standard": "standard bound, in expectation", "printed": "printed bound, does not hold in general"}


def _own_learning_rate() -> float | None:
    """η of the method's recipe; None: the theorem's."""
    rate: float | None = method_named(OURS).settings["policy"].get("learning_rate")
    return rate


def _holding_bound(settings: Settings, played: int, horizon: int) -> float:
    """The bound after so many rounds, with the η that is set for `horizon` of them."""
    servers, own = settings["servers"], _own_learning_rate()
    rate = theorem_learning_rate(servers, horizon) if own is None else own
    links, drawn = servers * (servers - 1), links_in_budget(settings["link_share"], servers)
    return standard_bound(links, drawn, played, rate)


def _bound_as_printed(settings: Settings, horizon: int) -> float | None:
    """Eq. (25), if η is the one that it is about."""
    return printed_bound(settings["servers"], horizon) if _own_learning_rate() is None else None


def _bandit_rows(results: Results, claims: Claims, scale: Scale) -> list[Row]:
    """Regret beside its bounds, where the probabilities end up, and what random links at the same budget do."""
    rows = []
    for each in (point(name, OURS, **setting) for name in scale.datasets for setting in settings_of_table_1()):
        if at := results.at(each):
            row: Row = {name: each[name] for name in ("dataset", *SETTING)}
            for figure in ("least", "most", "correlation_with_price"):
                known = [record["bandit"].get(figure) for record in at.values()]
                row[f"probability_{figure}"] = pair(value for value in known if value is not None)
            row["regret_best_fixed"] = pair(record["figures"]["regret_best_fixed"] for record in at.values())
            row |= _bounds_after_the_run(each, at)
            row["against_random_links"] = _against_random(results, each)
            rows.append({**row, "seeds": list(at)})
    return rows


def _bounds_after_the_run(settings: Settings, at: Mapping[int, Record]) -> Row:
    rounds = next(iter(at.values()))["curve"]["round"][-1]
    printed = _bound_as_printed(settings, rounds)
    regrets = [record["figures"]["regret_best_fixed"] for record in at.values()]
    return {
        "printed_bound": None if printed is None else round(printed, 2),
        "standard_bound": round(_holding_bound(settings, rounds, rounds), 2),
        "runs_above_printed_bound": None if printed is None else sum(regret > printed for regret in regrets),
    }


def _against_random(results: Results, settings: Settings) -> Row | None:
    other = {**settings, "method": "hat-dfed-without-utc"}
    found = {
        name: paired_or_none(results.figures(settings, name), results.figures(other, name))
        for name in ("avg_accuracy", "link_energy_mj", "total_energy_mj")
    }
    return {name: interval(each) for name, each in found.items() if each is not None} or None


def _bandit_markdown(rows: Sequence[Row]) -> str:
    headings = ["data set", "λ", "ρ", "regret", "printed bound", "bound that holds", "runs above the printed"]
    headings += ["least p", "most p", "correlation of p and price", "accuracy against random links"]
    cells = []
    for row in rows:
        keys = [format_setting(row[key]) for key in ("dataset", *SETTING)]
        printed = row["printed_bound"]
        bounds = [NOTHING if printed is None else f"{printed:.0f}", f"{row['standard_bound']:.0f}"]
        regret = [f"{row['regret_best_fixed'][0]:.0f} ± {row['regret_best_fixed'][1]:.0f}", *bounds]
        names = ("least", "most", "correlation_with_price")
        ends = [" ± ".join(f"{value:.2f}" for value in row[f"probability_{name}"]) or NOTHING for name in names]
        against = row["against_random_links"]
        words = format_difference(against["avg_accuracy"], 1) + " points" if against else NOTHING
        cells.append([*keys, *regret, f"{row['runs_above_printed_bound']} of {len(row['seeds'])}", *ends, words])
    return table(headings, cells)


def _panels(results: Results, claims: Claims, dataset: str, scale: Scale) -> list[Data]:
    """Regret of hat-dfed so far with its least and greatest seed, and the bounds: a panel for each setting."""
    panels = []
    for setting in settings_of_table_1():
        where = point(dataset, OURS, **setting)
        runs = results.at(where)
        regret = curves_by_round(runs, "regret")
        seen = list(regret.values())
        line = {
            "y": [statistics.fmean(values) for values in seen],
            "least": [min(values) for values in seen],
            "most": [max(values) for values in seen],
        }
        lines = [{"name": OURS, "seeds": len(runs), "x": list(regret), **line}]
        panels.append({"setting": list(setting.values()), "lines": lines, **_bounds_by_round(where, list(regret))})
    return drop_single_points(panels)


def _bounds_by_round(where: Settings, rounds: Sequence[int]) -> Data:
    """The standard bound round by round; and Eq. (25) as printed, if η is the one that it is about."""
    if not rounds:
        return {}
    horizon = rounds[-1]
    standard = [_holding_bound(where, played, horizon) for played in rounds]
    return {"standard": standard, "printed": _bound_as_printed(where, horizon)}


def _title(data: Data) -> str:
    """What is missed, and how much of what theory allows that is."""
    panels = [panel for panel in data["panels"] if panel["lines"]]
    ends = [panel["lines"][0]["y"][-1] for panel in panels]
    shares = [100 * end / panel["standard"][-1] for end, panel in zip(ends, panels, strict=True)]
    rounds = max(panel["lines"][0]["x"][-1] for panel in panels)
    missed = f"{OURS} misses {span(ends, '.0f')} of utility in {rounds} rounds"
    return f"{missed}, {span(shares, '.0f')} % of the standard bound"


def _draw(data: Data, title: str) -> Picture:
    """Four panels of regret over rounds, with the range over seeds and the two bounds."""
    from matplotlib.ticker import MaxNLocator

    import hatdfed.report.style as st
    from hatdfed_paper.drawing import four_panels, note

    meaning = "Regret against the best fixed links; line: mean, band: range over seeds."
    figure = st.page(WIDTH, 6.2, title, subtitle(data, meaning, SETTING_NOTE))
    panels = four_panels(figure, data, "Round", "Regret")
    for axes, panel in panels:
        for line in panel["lines"]:
            axes.fill_between(line["x"], line["least"], line["most"], color=COLOURS[OURS], alpha=0.25, linewidth=0)
            axes.plot(line["x"], line["y"], color=COLOURS[OURS], linewidth=2)
            note(axes, f"{OURS}  {whole(line['y'][-1])}", (line["x"][-1], line["most"][-1]), ha="right")
            _draw_bound(axes, line["x"], panel["standard"], "standard")
            if panel["printed"] is not None:
                _draw_bound(axes, line["x"], [panel["printed"]] * len(line["x"]), "printed")
    axes, lines = panels[0][0], lines_of(data)
    st.round_axis(axes, 0, max(line["x"][-1] for line in lines))
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=st.STEPS, integer=True))
    least = min(min(line["least"]) for line in lines)
    axes.set_ylim(min(0.0, least), 1.12 * max(panel["standard"][-1] for panel in data["panels"] if panel["lines"]))
    return figure


def _draw_bound(axes: Axes, rounds: list[float], value: list[float], kind: str) -> None:
    import hatdfed.report.style as st
    from hatdfed_paper.drawing import note

    dashes: Any = (0, (6, 2)) if kind == "standard" else (0, (1, 1.8))
    axes.plot(rounds, value, color=st.INK, linestyle=dashes, linewidth=1.3)
    note(axes, f"{_BOUNDS[kind]}  {whole(value[-1])}", (rounds[-1], value[-1]), ha="right")


BANDIT_TABLE = Table("bandit", _bandit_rows, _bandit_markdown)
REGRET_FIGURE = Figure("regret", _panels, _title, _draw)
