"""`hatdfed.sweep`: from a sweep file to a folder of runs and a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hatdfed.data.datasets import Dataset, load_dataset
from hatdfed.data.datasets.base import Progress
from hatdfed.errors import HatdfedError
from hatdfed.report.sinks import Publisher
from hatdfed.runs.recorder import RunResult
from hatdfed.runs.records.folder import RunFolder
from hatdfed.setup.build.placement import Placement
from hatdfed.setup.build.program import make_actors
from hatdfed.sweeps.batches import OnRounds, PlayOptions
from hatdfed.sweeps.executors import make_executor
from hatdfed.sweeps.executors.local import Executor
from hatdfed.sweeps.file import SweepFile, read_sweep
from hatdfed.sweeps.folder import DONE, SweepFolder, default_folder
from hatdfed.sweeps.points import Point, Run, all_runs, configs, distinct, points
from hatdfed.sweeps.resume_state import prepare_to_resume, read_run
from hatdfed.sweeps.search import Search, check_search, corners
from hatdfed.sweeps.table import DEFAULT_OBJECTIVES, Figures, Row, figures_of, run_figures, table, write_sweep_files
from hatdfed.sweeps.workers import refuse_in_unguarded_script


@dataclass(frozen=True)
class SweepResult:
    """What a sweep brought: a row for each point, and why runs failed, if any did."""

    folder: Path
    rows: list[Row]
    failed: dict[str, str]  # by the name of the run

    def run(self, name: str) -> RunResult:
        """One of its runs, whole, by its name under `runs/`."""
        return read_run(RunFolder(self.folder / "runs" / name))


class SweepFailedError(HatdfedError):
    """Not one run of a sweep came to its end; `result` says why each did not."""

    def __init__(self, result: SweepResult) -> None:
        name, reason = next(iter(result.failed.items()))
        count = len(result.failed)
        failed = "The only run failed" if count == 1 else f"All {count} runs failed"
        super().__init__(f"{failed}. The first, {name}: {reason}")
        self.result = result


def sweep(
    source: Path | str | Mapping[str, Any] | SweepFile,
    *,
    out: Path | str | None = None,
    executor: str | Executor = "local",
    jobs: int | None = None,
    fleet: str = "auto",
    device: str = "auto",
    data_dir: Path | str | None = None,
    on_run: OnRun | None = None,
    on_rounds: OnRounds | None = None,
    on_note: Callable[[str], None] | None = None,
    publishers: Sequence[Publisher] = (),
) -> SweepResult:
    """Play all runs of a sweep file, or of what one would hold, and sum them up in a table.

    `out` is gone on with; by default it is a folder under runs/ that belongs to this version of the file. `executor` is
    local (`jobs` processes), ray, or one of your own. The result names runs that failed; where all did, it raises.
    """
    refuse_in_unguarded_script()
    file = read_sweep(source)
    folder = SweepFolder(default_folder(source, file) if out is None else Path(out))
    folder.refuse_others(file)
    placement = Placement(fleet, device)
    player = make_executor(executor, jobs=jobs) if isinstance(executor, str) else executor
    check_runs(file, data_dir)
    with folder.claimed(file):
        how = PlayOptions(placement, data_dir, on_rounds, on_note)
        playing = Playing(folder, player, how, *size_of(file), on_run, publishers)
        found = _search(file, playing) if file.search is not None else _play(points(file), playing)
        objectives = DEFAULT_OBJECTIVES if file.search is None else file.search.objectives
        rows = table(found, playing.figures, objectives, with_test=file.search is None)
        write_sweep_files(file, rows, playing.failed, folder.path)
    result = SweepResult(folder.path, rows, playing.failed)
    if playing.failed and not playing.figures:
        raise SweepFailedError(result)
    return result


def size_of(file: SweepFile) -> tuple[int, int]:
    """Runs and rounds in all; of a search as many as there can be, at the base's number of rounds."""
    if file.search is None:
        runs = all_runs(points(file))
        return len(runs), sum(run.config.rounds for run in runs)
    base = configs(file, {})
    return file.search.trials * len(base), file.search.trials * sum(config.rounds for config in base)


def check_runs(file: SweepFile, data_dir: Path | str | None, progress: Progress | None = None) -> None:
    """Find out before the first run whether all can work; fetch data once, before the workers want it."""
    check_search(file)
    datasets: dict[str, Dataset] = {}
    where = None if data_dir is None else Path(data_dir)
    varied = [point.settings for point in points(file)] if file.search is None else corners(file.search)
    for config in (configs(file, settings)[0] for settings in varied):
        name = repr([config.dataset, config.dataset_options])
        if name not in datasets:
            options = config.dataset_options
            datasets[name] = load_dataset(config.dataset, data_dir=where, progress=progress, options=options)
        make_actors(config, datasets[name])


def _play(found: list[Point], playing: Playing) -> list[Point]:
    playing.play(all_runs(found))
    return found


def _search(file: SweepFile, playing: Playing) -> list[Point]:
    search = Search(file, playing.folder.search)
    playing.play(all_runs(search.points))  # those that were asked for before, of which most are done
    search.go_on(lambda group: playing.play(all_runs(group)), playing.figures)
    return distinct(search.points)


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
    how: PlayOptions
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
        jobs = {index: prepare_to_resume(self.folder.job(run)) for index, run in missing.items()}
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
