"""Methods as the pictures of a comparison show them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

import hatdfed.report.findings as fd
import hatdfed.report.run_data as rp
import hatdfed.report.style as st
from hatdfed.errors import RunFolderError
from hatdfed.report.run_data import RunData, Vector

_DASHES = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)))
_MARKERS = ("o", "s", "^", "D")


class Method(NamedTuple):
    """What the seeds of one method came to, and how it is drawn."""

    name: str
    runs: Sequence[RunData]
    joules: Vector  # [S] all of a run
    test_accuracy: Vector  # [S] percent, nan where it was not measured
    colour: str
    dashes: Any
    marker: str


def drawn_methods(runs: Mapping[str, Sequence[RunData]]) -> list[Method]:
    """Colours go round with the order of `runs`, and line styles and markers change with each turn."""
    empty = [name for name, seeds in runs.items() if not seeds or not all(run.rounds for run in seeds)]
    if not runs or empty:
        found = f"No rounds were played by {', '.join(empty)}" if empty else "There are no runs"
        raise RunFolderError(f"{found}, so there is nothing to compare. Give runs of at least one round.")
    methods = []
    for index, (name, seeds) in enumerate(runs.items()):
        turn, colour = divmod(index, len(st.PALETTE))
        joules = np.array([rp.total_joules(run) for run in seeds])
        accuracy = rp.column([run.summary for run in seeds], "avg_accuracy")
        look = (st.PALETTE[colour], _DASHES[turn % len(_DASHES)], _MARKERS[turn % len(_MARKERS)])
        methods.append(Method(name, seeds, joules, accuracy, *look))
    return methods


def seeds_note(methods: Sequence[Method], spread: str) -> str:
    """How many seeds stand behind a picture of these methods, and what shows their spread."""
    return fd.seeds_note([len(method.runs) for method in methods], spread)
