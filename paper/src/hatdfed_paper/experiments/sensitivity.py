"""RQ4: the weights α, of accuracy against energy, and β, of quality against volume."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import TYPE_CHECKING

from hatdfed.runs.statistics import PairedDifference
from hatdfed_paper.claims import Claims
from hatdfed_paper.differences import mean_over_seeds
from hatdfed_paper.experiment import Experiment, Figure, Table
from hatdfed_paper.figure_parts import (
    ACCURACY,
    ENERGY,
    GREY,
    OURS,
    WHISKERS_NOTE,
    WIDTH,
    Data,
    drop_single_points,
    lines_of,
    subtitle,
    sweep_line,
)
from hatdfed_paper.markdown import ACCURACY_AND_ENERGY, metrics_markdown
from hatdfed_paper.plan import Scale, Settings, point
from hatdfed_paper.results import Results
from hatdfed_paper.rows import Row, metric_rows
from hatdfed_paper.verdict_rules import Verdict, judge_at_least, judge_best_of_sweep

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

GAIN_SHARES = (0.4, 0.5, 0.6, 0.7, 0.8)  # α, swept at three β
QUALITY_SHARES = (0.2, 0.3, 0.4, 0.5, 0.6)  # β, swept at three α
SHARP = 5.0  # percent: what we take "sharply" to mean
_SYMBOLS = {"gain_share": "α", "quality_share": "β"}
_MEANING = {
    "gain_share": "α, weight of accuracy against energy",
    "quality_share": "β, weight of quality against volume",
}


def _points(dataset: str, scale: Scale) -> Iterator[Settings]:
    pairs = {*product(GAIN_SHARES, QUALITY_SHARES[1:4]), *product(GAIN_SHARES[1:4], QUALITY_SHARES)}
    for gain, quality in sorted(pairs):
        yield point(dataset, OURS, gain_share=gain, quality_share=quality)


def _rows(results: Results, claims: Claims, scale: Scale) -> list[Row]:
    keys = ("dataset", *_SYMBOLS)
    return metric_rows(results, EXPERIMENT.all_points(scale), keys, claims, None)  # the paper draws them only


def _verdicts(results: Results, claims: Claims, scale: Scale) -> Iterator[Verdict]:
    best = claims.section("sensitivity")
    alpha, beta = best["best_alpha"], best["best_beta"]
    for dataset in scale.datasets:
        over_alpha = {a: point(dataset, OURS, gain_share=a, quality_share=beta) for a in GAIN_SHARES}
        over_beta = {b: point(dataset, OURS, gain_share=alpha, quality_share=b) for b in QUALITY_SHARES}
        yield from judge_best_of_sweep(
            "RQ4", f"α = {alpha:g} is the most accurate ({dataset})", results, over_alpha, alpha
        )
        yield from judge_best_of_sweep(
            "RQ4", f"β = {beta:g} is the most accurate ({dataset})", results, over_beta, beta
        )
        rise = _rise(results, over_alpha[alpha], over_alpha[max(GAIN_SHARES)])
        words = f"Total energy rises sharply from α = {alpha:g} to {max(GAIN_SHARES):g} ({dataset})"
        yield from judge_at_least("RQ4", words, rise, SHARP, "%")


def _rise(results: Results, first: Settings, last: Settings) -> PairedDifference | None:
    """How much more energy, in percent."""
    before, after = (results.figures(each, "total_energy_mj") for each in (first, last))
    return mean_over_seeds([{seed: 100 * (after[seed] / before[seed] - 1) for seed in before.keys() & after.keys()}])


def _panels(results: Results, claims: Claims, dataset: str, scale: Scale) -> list[Data]:
    """Test accuracy and energy over α at three β, and over β at three α; with the values the paper calls best."""
    swept = list(_points(dataset, scale))
    panels = []
    for over, fixed, levels, best in (
        ("gain_share", "quality_share", QUALITY_SHARES[1:4], "best_alpha"),
        ("quality_share", "gain_share", GAIN_SHARES[1:4], "best_beta"),
    ):
        lines = [
            {"level": level, **sweep_line(results, [found for found in swept if found[fixed] == level], over)}
            for level in levels
        ]
        panels.append({"over": over, "fixed": fixed, "best": claims.section("sensitivity")[best], "lines": lines})
    return drop_single_points(panels)


def _title(data: Data) -> str:
    """How far apart the extremes are."""
    accuracy, energy = ([value for line in lines_of(data) for value in line[name]] for name in ("accuracy", "energy"))
    return (
        f"α and β move accuracy by up to {max(accuracy) - min(accuracy):.1f} points, "
        f"energy by up to {100 * (max(energy) / min(energy) - 1):.0f} %"
    )


def _draw(data: Data, title: str) -> Picture:
    """Accuracy above energy, over α on the left and over β on the right; the paper's best value is marked."""
    from matplotlib.ticker import MaxNLocator

    import hatdfed.report.run_data as rp
    import hatdfed.report.style as st
    from hatdfed_paper.drawing import draw_sweep, note, set_apart, whisker_ends

    under = subtitle(data, WHISKERS_NOTE, "Vertical line: the value that the paper calls best.")
    figure = st.page(WIDTH, 6.6, title, under)
    grid = figure.subplots(2, 2, sharex="col", sharey="row")
    for column, panel in enumerate(data["panels"]):
        for axes, name in zip(grid[:, column], ("accuracy", "energy"), strict=True):
            st.frame(axes)
            handles = draw_sweep(axes, panel["lines"], name)
            axes.axvline(panel["best"], color=GREY, linewidth=0.9, zorder=1)
        top, bottom = grid[:, column]
        names = [f"{_SYMBOLS[panel['fixed']]} = {line['level']:g}" for line in panel["lines"]]
        st.legend(top, handles, names, loc="lower left", bbox_to_anchor=(-0.01, 1.0), ncols=3)
        st.name_axes(top, "", ACCURACY if column == 0 else "")
        st.name_axes(bottom, _MEANING[panel["over"]], ENERGY if column == 0 else "")
        text = f"paper: {_SYMBOLS[panel['over']]} = {panel['best']:g}"
        note(top, text, (panel["best"], 0.02), xycoords=("data", "axes fraction"))
    st.percent_axis(grid[0, 0], whisker_ends(lines_of(data), "accuracy"))
    energy = whisker_ends(lines_of(data), "energy")
    grid[1, 0].set_ylim(*rp.limits(energy, least=0.1 * energy.max()))
    grid[1, 0].yaxis.set_major_locator(MaxNLocator(6, steps=st.STEPS))
    set_apart(figure)
    return figure


EXPERIMENT = Experiment(
    "sensitivity",
    "RQ4: the weights α and β",
    _points,
    tables=(Table("sensitivity", _rows, partial(metrics_markdown, metrics=ACCURACY_AND_ENERGY)),),
    figures=(Figure("sensitivity", _panels, _title, _draw),),
    verdicts=_verdicts,
)
