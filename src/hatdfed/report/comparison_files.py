"""Writes a comparison as files for other programs.

results.json      everything: methods, runs with their settings, reference, target, machine and versions
comparison.json   the table, one object a method
comparison.csv    the same, one row a method
comparison.tex    accuracy, energy and links of the methods, for papers
differences.tex   their differences to the reference, for papers
runs.csv          one row a run
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hatdfed.report.latex import make_comparison_table, make_difference_table
from hatdfed.runs.records.checkpoint import write_atomically
from hatdfed.runs.records.folder import environment
from hatdfed.runs.statistics import CONFIDENCE, Comparison, price_of, time_of


def results_document(comparison: Comparison) -> dict[str, Any]:
    """Make the content of results.json: everything about a comparison."""
    return {
        "reference": comparison.reference,
        "target_accuracy": comparison.target_accuracy,
        "confidence": CONFIDENCE,
        "methods": comparison.summary,
        "runs": _runs(comparison, with_config=True),
        "environment": environment(),
    }


def write_comparison_files(comparison: Comparison, folder: Path) -> list[Path]:
    """Write the files into `folder`; return them."""
    contents = {
        "results.json": _json(results_document(comparison)),
        "comparison.json": _json(comparison.summary),
        "comparison.csv": csv_text(comparison.summary),
        "comparison.tex": make_comparison_table(comparison.summary),
        "differences.tex": make_difference_table(comparison.summary, comparison.reference),
        "runs.csv": csv_text(_runs(comparison)),
    }
    for name, text in contents.items():
        write_atomically(folder / name, text.encode())
    return [folder / name for name in contents]


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Format rows as CSV: sections become columns, lists become text, and unknown values stay empty."""
    flat = [_flat(row) for row in rows]
    columns = list(dict.fromkeys(name for row in flat for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return text.getvalue()


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, Mapping):
            flat |= {f"{name}.{part}": inner for part, inner in _flat(value).items()}
        elif isinstance(value, list):
            flat[name] = " ".join(str(part) for part in value)
        else:
            flat[name] = value
    return flat


def _runs(comparison: Comparison, *, with_config: bool = False) -> list[dict[str, Any]]:
    """Make the summary of every run, with its joules and simulated seconds to the target accuracy where known."""
    rows = []
    for result in (result for runs in comparison.runs.values() for result in runs):
        row = {
            **result.summary,
            "joules_to_target": price_of(result, comparison.target_accuracy),
            "simulated_seconds_to_target": time_of(result, comparison.target_accuracy),
        }
        rows.append({**row, "config": result.config.model_dump(mode="json")} if with_config else row)
    return rows


def _json(content: Any) -> str:
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"
