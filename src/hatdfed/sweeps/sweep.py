"""`hatdfed.sweep`: from a sweep file to a folder of runs and a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hatdfed.batches import How, OnRounds
from hatdfed.build.placement import Placement
from hatdfed.build.program import make_actors
from hatdfed.errors import HatdfedError
from hatdfed.learning.datasets import Dataset, load_dataset
from hatdfed.learning.datasets.base import Progress
from hatdfed.records.folder import RunFolder
from hatdfed.session import RunResult
from hatdfed.sinks import Publisher
from hatdfed.standing import read_run
from hatdfed.sweeps.executor import Executor
from hatdfed.sweeps.executors import make_executor
from hatdfed.sweeps.file import SweepFile, read_sweep
from hatdfed.sweeps.files import write_sweep_files
from hatdfed.sweeps.folder import SweepFolder, default_folder
from hatdfed.sweeps.playing import OnRun, Playing
from hatdfed.sweeps.points import Point, all_runs, configs, distinct, points
from hatdfed.sweeps.search import Search, check_search, corners
from hatdfed.sweeps.table import DEFAULT_OBJECTIVES, Row, table
from hatdfed.workers import refuse_in_unguarded_script


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
        how = How(placement, data_dir, on_rounds, on_note)
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
