"""How far things have come: a live bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from hatdfed.cli.console import err, joules_text
from hatdfed.core.round import RoundRecord
from hatdfed.data.datasets.base import Progress as DownloadProgress
from hatdfed.runs.records.folder import RunFolder
from hatdfed.runs.round_row import ROUND_COLUMNS, joules_of, round_row
from hatdfed.setup.config import Config

if TYPE_CHECKING:
    from hatdfed.runs.recorder import OnRound, RunResult
    from hatdfed.sweeps.batches import OnRounds
    from hatdfed.sweeps.compare import OnRun
    from hatdfed.sweeps.sweep import OnRun as OnSweepRun
    from hatdfed.sweeps.table import Figures


class Show(Protocol):
    """What a counter is told."""

    def __call__(self, done: int, total: int, text: str) -> None:
        """`done` of `total`, and what there is to say about it."""


@contextmanager
def watch_rounds(folder: Path) -> Iterator[OnRound]:
    """Round, accuracy and joules of the run in this folder, which may go on from an earlier start."""
    spent: float | None = None
    with counter("round", lines=10) as show:

        def on_round(config: Config, record: RoundRecord) -> None:
            nonlocal spent
            row, column = round_row(record, seconds=None), ROUND_COLUMNS["avg_accuracy"]
            spent = (_spent_before(record.t, folder) if spent is None else spent) + joules_of(row)
            accuracy = f"{column.label} {column.text(row[column.name])}"
            show(record.t + 1, config.rounds, f"{accuracy}  spent {joules_text(spent)}")

        yield on_round


def _spent_before(t: int, folder: Path) -> float:
    """Joules of the rounds before round t, as the folder has them."""
    rounds = RunFolder(folder).read_rounds() if t else []
    return math.fsum(joules_of(row) for row in rounds if row["t"] < t)


@contextmanager
def watch_runs() -> Iterator[tuple[OnRun, OnRounds]]:
    """The runs of a comparison: how many rounds all of them have played together, and what each came to."""
    last = "runs begin"
    with counter("round", lines=20) as show:

        def on_run(result: RunResult, done: int, total: int) -> None:
            nonlocal last
            config, accuracy = result.config, result.summary["avg_accuracy"]
            last = f"run {done} of {total}: {config.method} seed {config.seed}, accuracy {accuracy:.1f} %"
            if not err.is_terminal:
                err.print(last, soft_wrap=True)

        def on_rounds(done: int, total: int) -> None:
            show(done, total, last if err.is_terminal else "of all runs")

        yield on_run, on_rounds


@contextmanager
def watch_sweep() -> Iterator[tuple[OnSweepRun, OnRounds]]:
    """The runs of a sweep: how many rounds all of them have played, what the last one came to, and the time left."""
    last = "runs begin"
    with counter("round", lines=20) as show:

        def on_run(name: str, figures: Figures | None, done: int, total: int) -> None:
            nonlocal last
            known = None if figures is None else figures["validation_accuracy"]
            came_to = "failed" if figures is None else "done" if known is None else f"validation accuracy {known:.1f} %"
            last = f"run {done} of {total}: {name}, {came_to}"

        yield on_run, lambda done, total: show(done, total, last)


@contextmanager
def watch_download() -> Iterator[DownloadProgress]:
    """A data set on its way; nothing is shown when none is downloaded."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True) as bar:
        tasks = {}

        def report(done_bytes: int, total_bytes: int | None, label: str, /) -> None:
            if label not in tasks:
                tasks[label] = bar.add_task(label, total=total_bytes)
            bar.update(tasks[label], completed=done_bytes, total=total_bytes)

        yield report


@contextmanager
def counter(what: str, *, lines: int) -> Iterator[Show]:
    """`lines` is how many plain lines a whole job may take where there is no terminal."""
    if not err.is_terminal:
        left, printed, before = _TimeLeft(), -1, ""

        def print_line(done: int, total: int, text: str) -> None:
            nonlocal printed, before
            remaining, part = left.after(done, total), lines * done // total
            line = f"{what} {done}/{total}  {text}{remaining}"
            if part > printed or (done == total and line != before):
                printed, before = part, line
                err.print(line, soft_wrap=True)

        yield print_line
        return
    columns = (
        TextColumn(what),
        MofNCompleteColumn(),
        BarColumn(),
        TextColumn("{task.description}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=err, transient=True) as bar:
        task = bar.add_task("getting ready", total=None)
        yield lambda done, total, text: bar.update(task, completed=done, total=total, description=text)


class _TimeLeft:
    """What is left takes as long for each round as what was played while we looked."""

    def __init__(self) -> None:
        self._first: tuple[int, float] | None = None

    def after(self, done: int, total: int) -> str:
        """In words; nothing before two looks, and at the end."""
        now = time.monotonic()
        if self._first is None:
            self._first = (done, now)
        start, since = self._first
        if done == start or done >= total:
            return ""
        seconds = (now - since) * (total - done) / (done - start)
        return f"  about {seconds:.0f} s left" if seconds < 90 else f"  about {seconds / 60:.0f} min left"
