"""RQ5: `hat-dfed` without the bandit, and without importance-aware merging."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hatdfed.runs.statistics import paired_or_none
from hatdfed_paper.claims import Claims
from hatdfed_paper.differences import Contest, percent_saved
from hatdfed_paper.experiment import Experiment, Table
from hatdfed_paper.markdown import metrics_markdown
from hatdfed_paper.plan import SETTING, Scale, Settings, point
from hatdfed_paper.results import Results
from hatdfed_paper.rows import Row, metric_rows
from hatdfed_paper.verdict_rules import Verdict, judge_size

WHOLE, WITHOUT_UTC, WITHOUT_IMA = "hat-dfed", "hat-dfed-without-utc", "hat-dfed-without-ima"
_SAVING = "ablation_without_utc_energy_saving_percent"


def _points(dataset: str, scale: Scale) -> Iterator[Settings]:
    for method in (WHOLE, WITHOUT_UTC, WITHOUT_IMA):
        yield point(dataset, method)


def _rows(results: Results, claims: Claims, scale: Scale) -> list[Row]:
    keys = ("dataset", *SETTING, "method")
    return metric_rows(results, EXPERIMENT.all_points(scale), keys, claims, "ablation")


def _headline(results: Results, scale: Scale) -> dict[str, Any]:
    """Total and link energy that the bandit saves against random links."""
    contests = [Contest(point(name, WHOLE), {WITHOUT_UTC: point(name, WITHOUT_UTC)}) for name in scale.datasets]
    return {_SAVING: [percent_saved(results, contests, figure) for figure in ("total_energy_mj", "link_energy_mj")]}


def _verdicts(results: Results, claims: Claims, scale: Scale) -> Iterator[Verdict]:
    for dataset in scale.datasets:
        whole = point(dataset, WHOLE)
        for method, words in (
            (WITHOUT_UTC, "More accurate than with random links at the same budget"),
            (WITHOUT_IMA, "More accurate than with plain averaging"),
        ):
            other = point(dataset, method)
            published = [claims.row("ablation", each) for each in (whole, other)]
            gain = paired_or_none(results.figures(whole, "avg_accuracy"), results.figures(other, "avg_accuracy"))
            if published[0] is not None and published[1] is not None:
                theirs = published[0]["avg_accuracy"][0] - published[1]["avg_accuracy"][0]
                yield from judge_size("RQ5", f"{words} ({dataset})", gain, theirs, "points")
    saved = _headline(results, scale)[_SAVING]
    for words, ours, theirs in zip(("total", "link"), saved, claims.headline[_SAVING], strict=True):
        yield from judge_size("RQ5", f"The bandit saves {words} energy against random links", ours, theirs, "%")


EXPERIMENT = Experiment(
    "ablation",
    "RQ5: without the bandit, without importance-aware merging",
    _points,
    tables=(Table("ablation", _rows, metrics_markdown),),
    headline=_headline,
    verdicts=_verdicts,
)
