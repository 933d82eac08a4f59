"""Runs at a point become a row: means and deviations over seeds, differences with their interval."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hatdfed.runs.statistics import PairedDifference
from hatdfed.runs.summary import mean_and_deviation
from hatdfed_paper.claims import METRICS
from hatdfed_paper.results import Record

Row = dict[str, Any]


def row_of(at: Mapping[int, Record], keys: Mapping[str, Any], published: Mapping[str, Any] | None) -> Row:
    """Mean and deviation of every metric over the seeds that there are."""
    pairs = {name: pair([record["figures"][name] for record in at.values()]) for name in (*METRICS, "std_accuracy")}
    return {**keys, **pairs, "seeds": list(at), "published": published}


def pair(values: Iterable[float]) -> list[float]:
    """Mean and standard deviation, rounded for the reader; nothing of nothing."""
    known = list(values)
    return [float(f"{value:.6g}") for value in mean_and_deviation(known)] if known else []


def interval(difference: PairedDifference) -> dict[str, Any]:
    """A paired difference as plain data."""
    rounded = [None if value is None else round(value, 4) for value in difference[:3]]
    return dict(zip(("mean", "low", "high"), rounded, strict=True)) | {"pairs": difference.n}
