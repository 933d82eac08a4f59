"""RQ2: how many links `hat-dfed` may draw, γ = 0.1 … 0.5."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from hatdfed.runs.statistics import paired_or_none
from hatdfed.runs.summary import mean_and_deviation
from hatdfed_paper.claims import Claims
from hatdfed_paper.differences import mean_of_places
from hatdfed_paper.experiment import Experiment, Figure, Table
from hatdfed_paper.figure_parts import (
    ACCURACY,
    ENERGY,
    OURS,
    SETTING_NOTE,
    WHISKERS_NOTE,
    WIDTH,
    Data,
    drop_single_points,
    lines_of,
    panel_name,
    span,
    subtitle,
    sweep_line,
)
from hatdfed_paper.markdown import ACCURACY_AND_ENERGY, metrics_markdown
from hatdfed_paper.plan import SETTING, Scale, Settings, point, settings_of_table_1
from hatdfed_paper.results import Results
from hatdfed_paper.rows import Row, metric_rows
from hatdfed_paper.verdict_rules import NEAR_SHARE, Verdict, count_near, is_near, judge_at_most, judge_direction

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

LINK_SHARES = (0.1, 0.2, 0.3, 0.4, 0.5)
MARGINAL = 1.0  # points: what we take "marginally" to mean


def _points(dataset: str, scale: Scale) -> Iterator[Settings]:
    for setting, share in product(settings_of_table_1(), LINK_SHARES):
        yield point(dataset, OURS, **setting, link_share=share)


def _rows(results: Results, claims: Claims, scale: Scale) -> list[Row]:
    return metric_rows(results, EXPERIMENT.all_points(scale), ("dataset", "link_share", *SETTING), claims, "sparsity")


def _verdicts(results: Results, claims: Claims, scale: Scale) -> Iterator[Verdict]:
    for dataset in scale.datasets:
        sparse, middle, dense = (_accuracy_at(results, dataset, share) for share in (0.1, 0.3, 0.5))
        growth, beyond = paired_or_none(middle, sparse), paired_or_none(dense, middle)
        yield from judge_direction("RQ2", f"Accuracy grows up to γ = 0.3 ({dataset})", growth, "grows", "points")
        yield from judge_at_most("RQ2", f"Beyond γ = 0.3 only marginally ({dataset})", beyond, MARGINAL, "points")


def _accuracy_at(results: Results, dataset: str, link_share: float) -> dict[int, float]:
    """Test accuracy at this γ by seed, mean over the four settings."""
    places = [point(dataset, OURS, **setting, link_share=link_share) for setting in settings_of_table_1()]
    return mean_of_places([results.figures(each, "avg_accuracy") for each in places])


def _checks(results: Results, claims: Claims, scale: Scale) -> Iterator[Verdict]:
    near, seeds = [], []
    for each in EXPERIMENT.all_points(scale):
        published, seen = claims.row("sparsity", each), results.figures(each, "total_energy_mj")
        if published is not None and seen:
            ours, _ = mean_and_deviation(list(seen.values()))
            near.append(is_near(ours, published["total_energy_mj"][0]))
            seeds.append(len(seen))
    words = f"Total energy at every γ, within {NEAR_SHARE:.0%} of the published"
    yield from count_near(words, near, "cells", min(seeds, default=0))


def _panels(results: Results, claims: Claims, dataset: str, scale: Scale) -> list[Data]:
    """Test accuracy and energy over γ: one panel, a line for each setting, with the published energies."""
    lines = []
    for setting in settings_of_table_1():
        swept = [point(dataset, OURS, **setting, link_share=share) for share in LINK_SHARES]
        line = sweep_line(results, swept, "link_share")
        rows = {found["link_share"]: claims.row("sparsity", found) for found in swept}
        known = {share: row["total_energy_mj"][0] for share, row in rows.items() if row and share in line["x"]}
        published = {"published_x": list(known), "published_energy": list(known.values())}
        lines.append({"setting": list(setting.values()), **line, **published})
    return drop_single_points([{"lines": lines}])


def _title(data: Data) -> str:
    """What more links bring and cost, from the least γ to the greatest."""
    lines = lines_of(data)
    gains = [line["accuracy"][-1] - line["accuracy"][0] for line in lines]
    times = [line["energy"][-1] / line["energy"][0] for line in lines]
    shares = [share for line in lines for share in (line["x"][0], line["x"][-1])]
    return (
        f"γ from {min(shares):g} to {max(shares):g} brings {OURS} {span(gains, '.1f')} points of accuracy "
        f"for {span(times, '.1f')} times the energy"
    )


def _draw(data: Data, title: str) -> Picture:
    """Accuracy and energy over γ side by side, a line for each setting; published energies are hollow."""
    from matplotlib.ticker import MaxNLocator

    import hatdfed.report.style as st
    from hatdfed_paper.drawing import draw_sweep, legend_below, set_apart, whisker_ends

    lines = lines_of(data)
    is_published = any(line["published_x"] for line in lines)
    notes = [WHISKERS_NOTE, "Hollow marks: published energy." if is_published else "", SETTING_NOTE]
    figure = st.page(WIDTH, 4.9, title, subtitle(data, *filter(None, notes)))
    pair = figure.subplots(1, 2)
    set_apart(figure)
    handles: list[Any] = []
    for axes, name, meaning in zip(pair, ("accuracy", "energy"), (ACCURACY, ENERGY), strict=True):
        st.frame(axes)
        handles = draw_sweep(axes, lines, name)
        st.name_axes(axes, "γ, share of links drawn in a round", meaning)
    st.percent_axis(pair[0], whisker_ends(lines, "accuracy"))
    published = [y for line in lines for y in line["published_energy"]]
    pair[1].set_ylim(0, 1.08 * np.append(whisker_ends(lines, "energy"), published).max())
    pair[1].yaxis.set_major_locator(MaxNLocator(7, steps=st.STEPS))
    legend_below(figure, handles, [panel_name(line["setting"]) for line in lines])
    return figure


EXPERIMENT = Experiment(
    "sparsity",
    "RQ2: how many links, γ = 0.1 … 0.5",
    _points,
    tables=(Table("sparsity", _rows, partial(metrics_markdown, metrics=ACCURACY_AND_ENERGY)),),
    figures=(Figure("sparsity", _panels, _title, _draw),),
    checks=_checks,
    verdicts=_verdicts,
)
