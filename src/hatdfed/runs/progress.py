"""Progress of runs: a live bar on a terminal, one line that changes in a notebook, plain lines elsewhere."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from hatdfed.core.round import RoundRecord
from hatdfed.runs.display import format_energy
from hatdfed.runs.recorder import OnRound
from hatdfed.runs.records.folder import RunFolder
from hatdfed.runs.result import RunResult
from hatdfed.runs.round_row import ROUND_COLUMNS, joules_of, round_row
from hatdfed.setup.config import Config

_NOTEBOOK_SECONDS = 0.2  # between two updates: every one is a message to the browser

OnRun = Callable[[RunResult, int, int], None]  # the run, how many are done, how many there are
# The name of a run, its figures (None: it failed), how many runs have ended, how many there are.
OnNamedRun = Callable[[str, Mapping[str, Any] | None, int, int], None]
OnRounds = Callable[[int, int], None]  # rounds that all runs together have played, and will have


class Show(Protocol):
    """Updates a counter."""

    def __call__(self, done: int, total: int, text: str) -> None:
        """Show `done` of `total` and a text."""


@contextmanager
def interactive_counter(what: str, wanted: bool | None) -> Iterator[Show | None]:
    """A counter for calls from Python; None where it is not `wanted` or, if that is None, where nobody looks on."""
    if wanted is False or (wanted is None and not _is_watched()):
        yield None
    elif is_notebook():
        with _changing_line(what) as show:
            yield show
    else:
        with counter(what, Console(stderr=True, highlight=False), lines=10) as show:
            yield show


def is_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    ipython: Any = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and "IPKernelApp" in shell.config


def _is_watched() -> bool:
    return is_notebook() or (sys.stderr is not None and sys.stderr.isatty())


def follow_rounds(show: Show, folder: Path | None = None) -> OnRound:
    """Show round, accuracy and joules of one run; what it spent before it was resumed is in its folder."""
    spent: float | None = None

    def on_round(config: Config, record: RoundRecord) -> None:
        nonlocal spent
        row, column = round_row(record, seconds=None), ROUND_COLUMNS["avg_accuracy"]
        spent = (_sum_joules_before(record.t, folder) if spent is None else spent) + joules_of(row)
        accuracy = f"{column.label} {column.text(row[column.name])}"
        show(record.t + 1, config.rounds, f"{accuracy}  spent {format_energy(spent)}")

    return on_round


def _sum_joules_before(t: int, folder: Path | None) -> float:
    """Sum the joules of the rounds before round t from the folder's records."""
    rounds = RunFolder(folder).read_rounds() if t and folder is not None else []
    return math.fsum(joules_of(row) for row in rounds if row["t"] < t)


def follow_runs(show: Show, print_run: Callable[[str], None] | None = None) -> tuple[OnRun, OnRounds]:
    """Show the rounds that all runs have played and the result of the last run, which `print_run` prints instead."""
    last = "runs begin" if print_run is None else "of all runs"

    def on_run(result: RunResult, done: int, total: int) -> None:
        nonlocal last
        config, accuracy = result.config, result.summary["avg_accuracy"]
        text = f"run {done} of {total}: {config.method} seed {config.seed}, accuracy {accuracy:.1f} %"
        if print_run is None:
            last = text
        else:
            print_run(text)

    return on_run, lambda done, total: show(done, total, last)


def follow_named_runs(show: Show) -> tuple[OnNamedRun, OnRounds]:
    """Show the rounds that all runs of a sweep have played, and what the last run has come to."""
    last = "runs begin"

    def on_run(name: str, figures: Mapping[str, Any] | None, done: int, total: int) -> None:
        nonlocal last
        last = f"run {done} of {total}: {name}, {_describe_outcome(figures)}"

    return on_run, lambda done, total: show(done, total, last)


def _describe_outcome(figures: Mapping[str, Any] | None) -> str:
    if figures is None:
        return "failed"
    if figures.get("pruned_after") is not None:
        return f"pruned after round {figures['pruned_after']}"
    known = figures["validation_accuracy"]
    return "done" if known is None else f"validation accuracy {known:.1f} %"


@contextmanager
def _changing_line(what: str) -> Iterator[Show]:
    """Write one line again and again, as the output of a cell shows it."""
    left, shown_at = TimeLeft(), 0.0

    def show(done: int, total: int, text: str) -> None:
        nonlocal shown_at
        remaining, now = left.after(done, total), time.monotonic()
        if done == total or now - shown_at >= _NOTEBOOK_SECONDS:
            shown_at = now
            sys.stderr.write(f"\r{what} {done}/{total}  {text}{remaining}".ljust(100))
            sys.stderr.flush()

    yield show
    if shown_at:
        sys.stderr.write("\n")


@contextmanager
def counter(what: str, console: Console, *, lines: int) -> Iterator[Show]:
    """Count on a bar, or print at most about `lines` plain lines where there is no terminal."""
    if not console.is_terminal:
        left, printed, before = TimeLeft(), -1, ""

        def print_line(done: int, total: int, text: str) -> None:
            nonlocal printed, before
            remaining, part = left.after(done, total), lines * done // total
            line = f"{what} {done}/{total}  {text}{remaining}"
            if part > printed or (done == total and line != before):
                printed, before = part, line
                console.print(line, soft_wrap=True)

        yield print_line
        return
    columns = (
        TextColumn(what),
        MofNCompleteColumn(),
        BarColumn(),
        TextColumn("{task.description}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("getting ready", total=None)
        yield lambda done, total, text: bar.update(task, completed=done, total=total, description=text)


class TimeLeft:
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
