"""`hatdfed.sweep`: from a sweep file to a folder of runs and a table.

sweep.yaml            what the sweep file said
runs/NAME/            one run each, as any other run folder
search.sqlite         what a search has tried (Optuna)
summary.json, .csv, .tex   the table, one row a point
pareto.png            accuracy over energy
tensorboard/, mlflow.sqlite   where they were asked for
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from hatdfed.data.datasets import LoadedDatasets
from hatdfed.data.datasets.base import Progress
from hatdfed.errors import HatdfedError, RunFolderError, did_you_mean
from hatdfed.report.sinks import Publisher
from hatdfed.runs.display import format_table
from hatdfed.runs.play import Job
from hatdfed.runs.progress import OnNamedRun
from hatdfed.runs.records.checkpoint import write_atomically
from hatdfed.runs.records.folder import RunFolder
from hatdfed.runs.records.lock import locked_folder
from hatdfed.runs.result import RunResult
from hatdfed.sweeps.batches import OnDone, OnFailed, PlayOptions, play_runs
from hatdfed.sweeps.catalogue import PlannedRun, check_runs, read_run
from hatdfed.sweeps.executors import Executor
from hatdfed.sweeps.file import SearchPlan, SweepFile, read_sweep
from hatdfed.sweeps.points import Point, all_runs, configs, points
from hatdfed.sweeps.search import Search, check_search, corners
from hatdfed.sweeps.search_outcome import add_trials, choose_distinct, describe_search
from hatdfed.sweeps.table import (
    DEFAULT_OBJECTIVES,
    Figures,
    Outcome,
    Row,
    figures_after,
    figures_of,
    table,
    write_sweep_files,
)

_SHOWN = {
    "point": "point",
    "validation_accuracy": "validation accuracy (%)",
    "avg_accuracy": "test accuracy (%)",
    "total_joules": "energy",
    "is_on_front": "on the front",
}


@dataclass(frozen=True)
class SweepResult:
    """What a sweep brought: a row for each point, and why runs failed, if any did."""

    folder: Path
    rows: list[Row]
    failed: dict[str, str]  # by the name of the run
    search: dict[str, Any] | None = None  # of a search: its sampler, what pruning saved, which settings mattered

    def run(self, name: str) -> RunResult:
        """One of its runs, whole, by its name under `runs/`."""
        if not (self.folder / "runs" / name).is_dir():
            known = [path.name for path in (self.folder / "runs").glob("*/")]
            raise RunFolderError(f"The sweep in {self.folder} has no run {name!r}. {did_you_mean(name, known)}")
        return read_run(RunFolder(self.folder / "runs" / name))

    def __repr__(self) -> str:
        """One line."""
        return f"<SweepResult: {self._describe()}>"

    def _repr_html_(self) -> str:
        """A row for each point, for notebooks."""
        return format_table(self.rows, self._describe(), _SHOWN)

    def _describe(self) -> str:
        failed = f", {len(self.failed)} runs failed" if self.failed else ""
        return f"{len(self.rows)} points in {self.folder}{failed}"


class SweepFailedError(HatdfedError):
    """Not one run of a sweep came to its end; `result` says why each did not."""

    def __init__(self, result: SweepResult) -> None:
        name, reason = next(iter(result.failed.items()))
        count = len(result.failed)
        failed = "The only run failed" if count == 1 else f"All {count} runs failed"
        super().__init__(f"{failed}. The first, {name}: {reason}")
        self.result = result


@dataclass(frozen=True)
class SweepPlan:
    """A sweep file, its folder, and its runs: all of a grid, or those of the base of a search."""

    file: SweepFile
    folder: SweepFolder
    points: list[Point]

    @property
    def size(self) -> tuple[int, int]:
        """Runs and rounds in all; of a search as many as there can be, at the base's number of rounds."""
        runs = all_runs(self.points)
        trials = 1 if self.file.search is None else self.file.search.num_trials
        return trials * len(runs), trials * sum(run.config.rounds for run in runs)

    def check(
        self, datasets: LoadedDatasets, data_dir: Path | str | None = None, progress: Progress | None = None
    ) -> None:
        """Find out before the first run whether all can work; load data once, before the workers want it."""
        check_search(self.file)
        if self.file.search is None:
            tried = [point.runs[0].config for point in self.points]
        else:
            first = self.file.worlds[:1]
            tried = [configs(self.file, settings, first)[0] for settings in corners(self.file.search)]
        check_runs(tried, datasets, data_dir, progress)


def plan_sweep(source: Path | str | Mapping[str, Any] | SweepFile, out: Path | None = None) -> SweepPlan:
    """Plan the points and runs of a sweep file; a folder that holds something else is refused."""
    file = read_sweep(source)
    folder = SweepFolder(default_folder(source, file) if out is None else out)
    folder.refuse_others(file)
    return SweepPlan(file, folder, points(file, folder.runs))


def play_sweep(
    plan: SweepPlan,
    executor: Executor,
    how: PlayOptions,
    on_run: OnNamedRun | None = None,
    publishers: Sequence[Publisher] = (),
) -> SweepResult:
    """Play what is left of a sweep, and write its table."""
    file, folder = plan.file, plan.folder
    with folder.claimed(file):
        playing = Playing(executor, how, *plan.size, on_run, publishers)
        outcome = _play(plan, playing) if file.search is None else _search(file, file.search, folder, playing)
        write_sweep_files(file, outcome, playing.failed, folder.path)
    result = SweepResult(folder.path, outcome.rows, playing.failed, outcome.search)
    if playing.failed and not playing.figures:
        raise SweepFailedError(result)
    return result


def _play(plan: SweepPlan, playing: Playing) -> Outcome:
    playing.play(all_runs(plan.points))
    return Outcome(plan.points, table(plan.points, playing.figures, DEFAULT_OBJECTIVES))


def _search(file: SweepFile, plan: SearchPlan, folder: SweepFolder, playing: Playing) -> Outcome:
    search = Search(file, folder.search, folder.runs)
    search.go_on(playing)
    trials = choose_distinct(search.trials)
    points = [trial.point for trial in trials]
    rows = table(points, playing.figures, plan.objectives, with_test=False)
    return Outcome(points, add_trials(plan, rows, trials), describe_search(plan, search.trials, playing.pruned))


def kept(result: RunResult) -> Figures:
    """The figures of a run that come back from wherever it was played; the rest is in its folder."""
    return figures_of(result.summary, result.rounds)


def read_kept(job: Job) -> Figures:
    """Read the same figures of a run that was played before."""
    run = _folder_of(job)
    return figures_of(run.read_results() or {}, run.read_rounds())


def keep_figures_so_far(rounds: int, result: RunResult) -> Figures:
    """The figures of a run that pauses after so many rounds."""
    return figures_after(result.rounds, rounds)


def read_so_far(rounds: int, job: Job) -> Figures:
    """Read the same figures of a run that has been played so far, or farther."""
    return figures_after(_folder_of(job).read_rounds(), rounds)


def _folder_of(job: Job) -> RunFolder:
    if job.out is None:
        raise ValueError("the runs of a sweep have folders")
    return RunFolder(job.out)


@dataclass
class Playing:
    """The runs of a sweep while they are played; a search hands them in group by group."""

    executor: Executor
    how: PlayOptions
    total: int  # runs in all
    total_rounds: int
    on_run: OnNamedRun | None = None
    publishers: Sequence[Publisher] = ()
    figures: dict[str, Figures] = field(default_factory=dict)  # of the runs that are done, by name
    failed: dict[str, str] = field(default_factory=dict)  # why, by name
    pruned: set[str] = field(default_factory=set)  # runs that are not played to their end
    _rounds: int = 0  # of the runs that have ended or paused
    _counted: dict[str, int] = field(default_factory=dict)  # of these by name

    def play(self, runs: Sequence[PlannedRun]) -> None:
        """Each run that has not ended yet."""
        new = [run for run in runs if run.name not in self.figures and run.name not in self.failed]
        play_runs(new, self._play, replace(self.how, keep=kept), self._done, self._fail, read=read_kept)

    def play_until(self, runs: Sequence[PlannedRun], rounds: int) -> dict[str, Figures]:
        """So many rounds of each run; what they have come to, by name, of those that did not fail."""
        found: dict[str, Figures] = {}

        def done(run: PlannedRun, figures: Figures) -> None:
            found[run.name] = figures
            self._count(run, rounds)

        new = [replace(run, until=rounds) for run in runs if run.name not in self.failed]
        how = replace(self.how, keep=partial(keep_figures_so_far, rounds))
        play_runs(new, self._play, how, done, self._fail, read=partial(read_so_far, rounds))
        return found

    def drop(self, runs: Sequence[PlannedRun], rounds: int) -> None:
        """These runs end after so many rounds, unless another trial has brought them to their end."""
        for run in runs:
            if run.name not in self.pruned | self.figures.keys() | self.failed.keys():
                self.pruned.add(run.name)
                self.total_rounds -= run.config.rounds - rounds
                self._ended(run, {"validation_accuracy": None, "pruned_after": rounds}, rounds)

    def _play(self, jobs: Mapping[int, Job], how: PlayOptions, done: OnDone, failed: OnFailed | None) -> None:
        before = self._rounds
        how = replace(how, on_rounds=lambda played, _: self._tell_rounds(before + played))
        self.executor.play(jobs, how, done, failed)

    def _done(self, run: PlannedRun, figures: Figures) -> None:
        self.figures[run.name] = figures
        self.pruned.discard(run.name)
        if run.folder is not None:
            for publish in self.publishers:
                publish(run.name, run.folder)
        self._ended(run, figures, run.config.rounds)

    def _fail(self, run: PlannedRun, reason: str) -> None:
        self.failed[run.name] = reason
        self._ended(run, None, run.config.rounds)

    def _count(self, run: PlannedRun, rounds: int) -> None:
        more = rounds - self._counted.get(run.name, 0)
        self._counted[run.name] = self._counted.get(run.name, 0) + max(more, 0)
        self._rounds += max(more, 0)

    def _ended(self, run: PlannedRun, figures: Figures | None, rounds: int) -> None:
        self._count(run, rounds)
        ended = len(self.figures) + len(self.failed) + len(self.pruned)
        if self.on_run is not None:
            self.on_run(run.name, figures, ended, self.total)
        if ended == self.total:
            self._tell_rounds(self._rounds)

    def _tell_rounds(self, done: int) -> None:
        if self.how.on_rounds is not None:
            self.how.on_rounds(done, max(done, self.total_rounds))


@dataclass(frozen=True)
class SweepFolder:
    """The paths inside one sweep's folder."""

    path: Path

    @property
    def search(self) -> Path:
        """What a search has tried."""
        return self.path / "search.sqlite"

    @property
    def runs(self) -> Path:
        """Where every run has its folder."""
        return self.path / "runs"

    def refuse_others(self, sweep: SweepFile) -> None:
        """A folder that holds something else is not touched."""
        try:
            if not self.path.exists():
                return
        except OSError as error:  # a name that no folder can have
            raise RunFolderError(f"{self.path} cannot be a folder ({error.strerror}). Choose another --out.") from None
        written = self.path / "sweep.yaml"
        if written.is_file():
            there = read_sweep(written)
            if there.version != sweep.version:
                raise RunFolderError(
                    f"{self.path} belongs to another sweep file (version {there.version}, this one is "
                    f"{sweep.version}). Choose another --out, or leave it out: every version has a folder of its own."
                )
        elif not self.path.is_dir() or any(entry.name != ".lock" for entry in self.path.iterdir()):
            raise RunFolderError(f"{self.path} holds something that is no sweep. Choose another --out.")

    @contextmanager
    def claimed(self, sweep: SweepFile) -> Iterator[None]:
        """The folder for oneself and for this sweep."""
        self.refuse_others(sweep)
        with locked_folder(self.path, "--out"):
            self.refuse_others(sweep)
            content = yaml.safe_dump(_drop_unset(sweep), sort_keys=False, allow_unicode=True)
            write_atomically(self.path / "sweep.yaml", content.encode())
            yield


def default_folder(source: Path | str | Mapping[str, Any] | SweepFile, sweep: SweepFile) -> Path:
    """Every version of a sweep file has a folder of its own, so that the same command goes on with it."""
    stem = Path(source).stem if isinstance(source, str | Path) else "sweep"
    return Path("runs") / f"{stem}-{sweep.version}"


def _drop_unset(sweep: SweepFile) -> dict[str, Any]:
    """What was said, without what was not."""
    return {key: value for key, value in sweep.model_dump(mode="json", exclude_none=True).items() if value != {}}
