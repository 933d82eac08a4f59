"""Figures of the experiments as PNG files, with a list that says which numbers each of them shows.

Numbers have four digits: what is drawn is what can be compared.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from hatdfed.runs.records.checkpoint import write_atomically
from hatdfed_paper.claims import Claims
from hatdfed_paper.experiment import Figure
from hatdfed_paper.experiments import EXPERIMENTS
from hatdfed_paper.figure_parts import Data
from hatdfed_paper.plan import Scale
from hatdfed_paper.results import Results

DIGESTS = "figures.json"
DIGITS = 4
_NAMES = {"digits": "Digits", "fashion-mnist": "Fashion-MNIST", "cifar-10": "CIFAR-10"}


def write_figures(results: Results, claims: Claims, scale: Scale, folder: Path) -> list[Path]:
    """Draw every figure that has something to show, and write the digests beside them; return the files."""
    from hatdfed.report.style import save  # brings matplotlib

    folder.mkdir(parents=True, exist_ok=True)
    found = figure_data(results, claims, scale)
    figures = {figure.kind: figure for figure in _figures()}
    pictures = [
        save(figures[data["kind"]].draw(data, figure_title(data)), folder / name) for name, data in found.items()
    ]
    text = json.dumps({name: _digest(data) for name, data in found.items()}, indent=2)
    write_atomically(folder / DIGESTS, f"{text}\n".encode())
    return [*pictures, folder / DIGESTS]


def figure_digests(results: Results, claims: Claims, scale: Scale) -> dict[str, str]:
    """A short name for the numbers of each figure, by file name; draws nothing and does without matplotlib."""
    return {name: _digest(data) for name, data in figure_data(results, claims, scale).items()}


def figure_data(results: Results, claims: Claims, scale: Scale) -> dict[str, Data]:
    """The figures that have a line to draw, by file name."""
    found: dict[str, Data] = {}
    for dataset in scale.datasets:
        for experiment, figure in ((each, figure) for each in EXPERIMENTS.values() for figure in each.figures):
            panels = figure.panels(experiment.own_results(results, scale), claims, dataset, scale)
            if any(panel["lines"] for panel in panels):
                data = {"kind": figure.kind, "dataset": dataset, "scale": scale.name, "panels": panels}
                found[f"{figure.kind}-{dataset}.png"] = _round(data)
    return found


def figure_title(data: Data) -> str:
    """What is seen in a figure, in a sentence that follows from its numbers."""
    (figure,) = (figure for figure in _figures() if figure.kind == data["kind"])
    return f"{_NAMES.get(data['dataset'], data['dataset'])}: {figure.title(data)}"


def _figures() -> list[Figure]:
    return [figure for experiment in EXPERIMENTS.values() for figure in experiment.figures]


def _digest(data: Data) -> str:
    text = json.dumps(data, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _round(value: Any) -> Any:
    """The same with four digits in every number that is not whole."""
    if isinstance(value, dict):
        return {name: _round(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_round(each) for each in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value
