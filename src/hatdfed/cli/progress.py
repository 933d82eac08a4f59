"""Progress of runs and downloads on standard error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from hatdfed.cli.console import err
from hatdfed.data.datasets.base import Progress as DownloadProgress
from hatdfed.runs.progress import (
    OnNamedRun,
    OnRounds,
    OnRun,
    counter,
    follow_named_runs,
    follow_rounds,
    follow_runs,
)

if TYPE_CHECKING:
    from hatdfed.runs.recorder import OnRound


@contextmanager
def watch_rounds(folder: Path) -> Iterator[OnRound]:
    """Show round, accuracy and joules of the run in this folder, which may be resumed."""
    with counter("round", err, lines=10) as show:
        yield follow_rounds(show, folder)


@contextmanager
def watch_runs() -> Iterator[tuple[OnRun, OnRounds]]:
    """Show the rounds that all runs of a comparison have played, and the result of each run."""
    print_run = None if err.is_terminal else lambda text: err.print(text, soft_wrap=True)
    with counter("round", err, lines=20) as show:
        yield follow_runs(show, print_run)


@contextmanager
def watch_sweep() -> Iterator[tuple[OnNamedRun, OnRounds]]:
    """Show the rounds that all runs of a sweep have played, the result of the last run, and the time left."""
    with counter("round", err, lines=20) as show:
        yield follow_named_runs(show)


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
