"""RQ3: `hat-dfed` with more servers, up to N = 50."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from hatdfed.runs.statistics import paired_or_none
from hatdfed_paper.claims import Claims
from hatdfed_paper.experiment import Experiment, Table
from hatdfed_paper.markdown import SERVER_ACCURACIES, metrics_markdown
from hatdfed_paper.plan import EASY, SETTING, Scale, Settings, point
from hatdfed_paper.results import Results
from hatdfed_paper.rows import Row, metric_rows
from hatdfed_paper.verdict_rules import Verdict, judge_size

_DROP = "scalability_accuracy_drop_points"


def _points(dataset: str, scale: Scale) -> Iterator[Settings]:
    for servers in scale.servers:
        yield _point(dataset, servers)


def _point(dataset: str, servers: int) -> Settings:
    return point(dataset, "hat-dfed", **EASY, servers=servers)


def _rows(results: Results, claims: Claims, scale: Scale) -> list[Row]:
    keys = ("dataset", "servers", *SETTING)
    return metric_rows(results, EXPERIMENT.all_points(scale), keys, claims, "scalability")


def _ends(dataset: str, scale: Scale) -> tuple[Settings, Settings]:
    """The smallest and the largest fleet."""
    return _point(dataset, min(scale.servers)), _point(dataset, max(scale.servers))


def _headline(results: Results, scale: Scale) -> dict[str, Any]:
    """Points of accuracy lost from the smallest fleet to the largest, seed by seed."""
    drops = {}
    for dataset in scale.datasets:
        few, many = (results.figures(each, "avg_accuracy") for each in _ends(dataset, scale))
        drops[dataset] = paired_or_none(few, many)
    return {_DROP: drops}


def _verdicts(results: Results, claims: Claims, scale: Scale) -> Iterator[Verdict]:
    for dataset, lost in _headline(results, scale)[_DROP].items():
        published = claims.headline[_DROP].get(dataset)
        if published is not None:
            words = f"Accuracy falls slightly from N = {min(scale.servers)} to {max(scale.servers)} ({dataset})"
            yield from judge_size("RQ3", words, lost, published, "points lost")
    for dataset in scale.datasets:
        few, many = _ends(dataset, scale)
        theirs = [claims.row("scalability", each) for each in (few, many)]
        ours = paired_or_none(results.figures(many, "std_accuracy"), results.figures(few, "std_accuracy"))
        if theirs[0] is not None and theirs[1] is not None:
            published = theirs[1]["var_accuracy"][0] - theirs[0]["var_accuracy"][0]
            words = f"Servers lie further apart with N = {max(scale.servers)} ({dataset})"
            yield from judge_size("RQ3", words, ours, published, "points of deviation")


EXPERIMENT = Experiment(
    "scalability",
    "RQ3: more servers, up to N = 50",
    _points,
    tables=(Table("scalability", _rows, partial(metrics_markdown, metrics=SERVER_ACCURACIES)),),
    headline=_headline,
    verdicts=_verdicts,
)
