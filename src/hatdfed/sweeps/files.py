"""A sweep's table as files that people and other programs read: summary.json, summary.csv, pareto.png."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hatdfed.records.checkpoint import write_atomically
from hatdfed.report.comparison_files import csv_text
from hatdfed.report.style import save
from hatdfed.report.sweep_figure import sweep_figure
from hatdfed.statistics import CONFIDENCE
from hatdfed.sweeps.file import SweepFile
from hatdfed.sweeps.table import OBJECTIVES, Row


def summary_document(sweep: SweepFile, rows: Sequence[Row], failed: Mapping[str, str]) -> dict[str, Any]:
    """The table and what it is of; nothing in it depends on when and how often the sweep was played."""
    return {
        "version": sweep.version,
        "confidence": CONFIDENCE,
        "ranked_by": "validation accuracy",
        "rows": list(rows),
        "failed": dict(sorted(failed.items())),
    }


def write_sweep_files(sweep: SweepFile, rows: Sequence[Row], failed: Mapping[str, str], folder: Path) -> None:
    """Write all three; the picture only where there is something to see."""
    document = json.dumps(summary_document(sweep, rows, failed), indent=2, ensure_ascii=False, default=str) + "\n"
    write_atomically(folder / "summary.json", document.encode())
    write_atomically(folder / "summary.csv", csv_text(rows).encode())
    x, y = axes_of(() if sweep.search is None else sweep.search.objectives)
    fair = [row for row in rows if not row["leaks_test"] and row[x] is not None and row[y] is not None]
    if fair:
        save(sweep_figure(fair, x, y), folder / "pareto.png")


def axes_of(objectives: Sequence[str]) -> tuple[str, str]:
    """The columns that the picture shows: the first objective to be small, and the first to be large."""
    columns = [OBJECTIVES[name] for name in objectives]
    x = next((column for column, up in columns if not up), "total_joules")
    return x, next((column for column, up in columns if up), "validation_accuracy")
