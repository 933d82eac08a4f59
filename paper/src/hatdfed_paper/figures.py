"""Figures of the experiments as PNG files, with a list that says which numbers each of them shows."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from hatdfed.runs.records.checkpoint import write_atomically
from hatdfed_paper.claims import Claims
from hatdfed_paper.figure_data import Data, figure_data
from hatdfed_paper.plans import Scale
from hatdfed_paper.results import Results

DIGESTS = "figures.json"


def write_figures(results: Results, claims: Claims, scale: Scale, folder: Path) -> list[Path]:
    """Draw every figure that has something to show, and write the digests beside them; return the files."""
    from hatdfed_paper.figure_drawing import draw  # brings matplotlib

    folder.mkdir(parents=True, exist_ok=True)
    found = figure_data(results, claims, scale)
    pictures = [draw(data, folder / name) for name, data in found.items()]
    text = json.dumps({name: _digest(data) for name, data in found.items()}, indent=2)
    write_atomically(folder / DIGESTS, f"{text}\n".encode())
    return [*pictures, folder / DIGESTS]


def figure_digests(results: Results, claims: Claims, scale: Scale) -> dict[str, str]:
    """A short name for the numbers of each figure, by file name; draws nothing and does without matplotlib."""
    return {name: _digest(data) for name, data in figure_data(results, claims, scale).items()}


def _digest(data: Data) -> str:
    text = json.dumps(data, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
