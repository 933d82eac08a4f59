"""Progress of runs and downloads: a live bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from hatdfed.cli.console import err, format_energy
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
    """Updates a counter."""

    def __call__(self, done: int, total: int, text: str) -> None:
        """Show `done` of `total` and a text."""


@contextmanager
def watch_rounds(folder: Path) -> Iterator[OnRound]:
    """Show round, accuracy and joules of the run in this folder, which may be resumed."""
    spent: float | None = None
    with counter("round", lines=10) as show:

        def on_round(config: Config, record: RoundRecord) -> None:
            nonlocal spent
            row, column = round_row(record, seconds=None), ROUND_COLUMNS["avg_accuracy"]
            spent = (_spent_before(record.t, folder) if spent is None else spent) + joules_of(row)
            accuracy = f"{column.label} {column.text(row[column.name])}"
            show(record.t + 1, config.rounds, f"{accuracy}  spent {format_energy(spent)}")

        yield on_round


def _spent_before(t: int, folder: Path) -> float:
    """Sum the joules of the rounds before round t from the folder's records."""
    rounds = RunFolder(folder).read_rounds() if t else []
    return math.fsum(joules_of(row) for row in rounds if row["t"] < t)


@contextmanager
def watch_runs() -> Iterator[tuple[OnRun, OnRounds]]:
    """Show the rounds that all runs of a comparison have played, and the result of each run."""
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
    """Show the rounds that all runs of a sweep have played, the result of the last run, and the time left."""
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
    """Show the download of a data set; nothing if none is downloaded."""
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
    """Count on a bar, or print at most about `lines` plain lines where there is no terminal."""
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
    """Estimates the time left from the time that a round has taken so far."""

    def __init__(self) -> None:
        self._first: tuple[int, float] | None = None

    def after(self, done: int, total: int) -> str:
        """Format the time left; empty at the first call and at the end."""
        now = time.monotonic()
        if self._first is None:
            self._first = (done, now)
        start, since = self._first
        if done == start or done >= total:
            return ""
        seconds = (now - since) * (total - done) / (done - start)
        return f"  about {seconds:.0f} s left" if seconds < 90 else f"  about {seconds / 60:.0f} min left"
