"""Plays what is missing of a sweep's runs: what is done is skipped, what was begun goes on, what dies is told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hatdfed.batches import How
from hatdfed.session import RunResult
from hatdfed.standing import as_it_stands
from hatdfed.sweeps.executor import Executor
from hatdfed.sweeps.folder import DONE, SweepFolder
from hatdfed.sweeps.points import Run
from hatdfed.sweeps.table import Figures, figures_of, run_figures

OnRun = Callable[
    [str, Figures | None, int, int], None
]  # a run, its figures (None: failed), how many ended, of how many
Publish = Callable[[str, Path], None]  # the name of a finished run, and its folder


def kept(result: RunResult) -> Figures:
    """What comes back from wherever a run was played; the rest is in its folder."""
    return figures_of(result.summary, result.rounds)


@dataclass
class Playing:
    """The runs of a sweep while they are played; a search hands them in group by group."""

    folder: SweepFolder
    executor: Executor
    how: How
    total: int  # runs in all
    total_rounds: int
    on_run: OnRun | None = None
    publishers: Sequence[Publish] = ()
    figures: dict[str, Figures] = field(default_factory=dict)  # of the runs that are done, by name
    failed: dict[str, str] = field(default_factory=dict)  # why, by name
    _rounds: int = 0  # of the runs that have ended

    def play(self, runs: Sequence[Run]) -> None:
        """Each run that has not ended yet."""
        new = [run for run in runs if run.name not in self.figures and run.name not in self.failed]
        # All of them before the first is played: any folder may be refused.
        missing = {index: run for index, run in enumerate(new) if self.folder.standing(run) != DONE}
        for index, run in enumerate(new):
            if index not in missing:
                self._done(run, None)
        jobs = {index: as_it_stands(self.folder.job(run)) for index, run in missing.items()}
        before = self._rounds
        how = replace(self.how, keep=kept, on_rounds=lambda done, _: self._tell_rounds(before + done))
        self.executor.play(
            jobs, how, lambda i, result: self._done(new[i], result), lambda i, why: self._fail(new[i], why)
        )

    def _done(self, run: Run, figures: Any) -> None:
        place = self.folder.job(run).out
        if place is None:
            raise ValueError("a run of a sweep has a folder")
        self.figures[run.name] = run_figures(place) if figures is None else figures
        for publish in self.publishers:
            publish(run.name, place)
        self._ended(run, self.figures[run.name])

    def _fail(self, run: Run, reason: str) -> None:
        self.failed[run.name] = reason
        self._ended(run, None)

    def _ended(self, run: Run, figures: Figures | None) -> None:
        self._rounds += run.config.rounds
        ended = len(self.figures) + len(self.failed)
        if self.on_run is not None:
            self.on_run(run.name, figures, ended, self.total)
        if ended == self.total:
            self._tell_rounds(self._rounds)

    def _tell_rounds(self, done: int) -> None:
        if self.how.on_rounds is not None:
            self.how.on_rounds(done, max(done, self.total_rounds))
