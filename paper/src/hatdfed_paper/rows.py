"""Runs at a point become a row: means and deviations over seeds, differences with their interval.

Keys are those of `published.toml`, so that ours and theirs can be laid over each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hatdfed.runs.statistics import PairedDifference
from hatdfed.runs.summary import mean_and_deviation
from hatdfed_paper.claims import METRICS, Claims
from hatdfed_paper.plan import Settings
from hatdfed_paper.results import Record, Results

Row = dict[str, Any]


def metric_rows(
    results: Results, points: Iterable[Settings], keys: Sequence[str], claims: Claims, published: str | None
) -> list[Row]:
    """A row for each point that has been played, told apart by `keys`, beside the published table of that name."""
    rows = []
    for each in points:
        if at := results.at(each):
            theirs = None if published is None else claims.row(published, each)
            rows.append(row_of(at, {key: each[key] for key in keys}, theirs))
    return rows


def row_of(at: Mapping[int, Record], keys: Mapping[str, Any], published: Mapping[str, Any] | None) -> Row:
    """Mean and deviation of every metric over the seeds that there are."""
    pairs = {name: pair([record["figures"][name] for record in at.values()]) for name in (*METRICS, "std_accuracy")}
    return {**keys, **pairs, "seeds": list(at), "published": published}


def pair(values: Iterable[float]) -> list[float]:
    """Mean and standard deviation, rounded for the reader; nothing of nothing."""
    known = list(values)
    return [float(f"{value:.6g}") for value in mean_and_deviation(known)] if known else []


def interval(difference: PairedDifference) -> Row:
    """A paired difference as plain data."""
    rounded = [None if value is None else round(value, 4) for value in difference[:3]]
    return dict(zip(("mean", "low", "high"), rounded, strict=True)) | {"pairs": difference.n}


def interval_or_none(difference: PairedDifference | None) -> Row | None:
    """The same, where there is a difference."""
    return None if difference is None else interval(difference)
