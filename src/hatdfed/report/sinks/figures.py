"""What a run shows elsewhere: its curves, its final figures and its settings, under the same names everywhere."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hatdfed.core.energy.ledger import joules_by_cause
from hatdfed.core.round import RoundRecord
from hatdfed.runs.records.cleaning import flat_settings, number
from hatdfed.runs.records.folder import RunFolder
from hatdfed.runs.summary import METRICS

Curves = dict[str, float]  # one step of each


class Shown(NamedTuple):
    """A finished run."""

    settings: list[tuple[str, str]]
    rounds: list[tuple[int, Curves]]
    final: Curves


def read_shown(folder: Path) -> Shown:
    """From its folder."""
    run = RunFolder(folder)
    results = run.read_results() or {}
    return Shown(flat_settings(results.get("config", {})), steps(run.read_rounds()), final_figures(results))


def steps(rounds: Sequence[Mapping[str, Any]]) -> list[tuple[int, Curves]]:
    """Rounds as steps, counted from 1 as people do."""
    return [(int(row["t"]) + 1, round_figures(row)) for row in rounds]


def round_figures(row: Mapping[str, Any]) -> Curves:
    """One round: validation accuracy over servers in percent, joules by cause, links; what is not known is left out."""
    named = {
        "validation_accuracy/mean": row["avg_accuracy"],
        "validation_accuracy/min": row["worst_accuracy"],
        "validation_accuracy/max": row["best_accuracy"],
        **{f"joules/{cause}": row[f"{cause}_joules"] for cause in ("upload", "training", "link")},
        "links": row["links"],
    }
    return {name: value for name, found in named.items() if (value := number(found)) is not None}


def figures_of_record(record: RoundRecord) -> Curves:
    """The same, while the run goes on."""
    known = [100 * float(value) for value in record.report.accuracy if not math.isnan(value)]
    accuracy = (sum(known) / len(known), min(known), max(known)) if known else (None, None, None)
    spent = {f"{cause}_joules": joules for cause, joules in joules_by_cause(record.report.energy).items()}
    names = ("avg_accuracy", "worst_accuracy", "best_accuracy")
    links = record.draw.topology.num_links
    return round_figures({**dict(zip(names, accuracy, strict=True)), **spent, "links": links})


def final_figures(results: Mapping[str, Any]) -> Curves:
    """What the run is judged by, after its end."""
    named = {f"final/{name}": results.get(name) for name in (*METRICS, "links_per_round")}
    return {name: value for name, found in named.items() if (value := number(found)) is not None}
