"""Runs by name: what each is, how far it is in its folder, and what is left to play of a list of them.

Comparisons, sweeps and the paper's experiments are lists of runs. Each config is resolved once, when its run is named.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from hatdfed.data.datasets import LoadedDatasets
from hatdfed.data.datasets.base import Progress
from hatdfed.errors import RunFolderError
from hatdfed.runs.play import Job
from hatdfed.runs.records.checkpoint import read_round
from hatdfed.runs.records.folder import RunFolder
from hatdfed.runs.records.lock import locked_folder
from hatdfed.runs.records.tables import read_tables
from hatdfed.runs.result import RunResult
from hatdfed.setup.build.program import make_actors
from hatdfed.setup.config import Config
from hatdfed.setup.layers import validate
from hatdfed.setup.run_identity import result_key, run_difference, same_run


class State(StrEnum):
    """How far a run is."""

    DONE = "done"
    BEGUN = "begun"  # it can go on from its checkpoint
    OPEN = "open"


@dataclass(frozen=True)
class PlannedRun:
    """One run: its name, everything that decides it, and its folder if it has one."""

    name: str
    config: Config
    folder: Path | None = None
    until: int | None = None  # pause after so many rounds

    def within(self, folder: Path | None) -> PlannedRun:
        """The run with a folder of its name in `folder`; with none, if that is None."""
        return replace(self, folder=None if folder is None else folder / self.name)

    @property
    def job(self) -> Job:
        """What is to be played."""
        return Job(self.config, self.folder, until=self.until)

    @property
    def state(self) -> State:
        """How far it is; a folder that holds a run of other settings is refused."""
        if is_finished(self.job):
            return State.DONE
        is_begun = self.folder is not None and RunFolder(self.folder).checkpoint.is_file()
        return State.BEGUN if is_begun else State.OPEN


def unfinished(runs: Iterable[PlannedRun]) -> list[PlannedRun]:
    """The runs that are left to play; a folder that holds a run of other settings is refused."""
    return [run for run in runs if run.state != State.DONE]


def check_runs(
    configs: Iterable[Config],
    datasets: LoadedDatasets,
    data_dir: Path | str | None = None,
    progress: Progress | None = None,
) -> None:
    """Refuse what cannot work before the first run is played, and load all data, telling `progress` of downloads."""
    for config in {result_key(config, but=("seed",)): config for config in configs}.values():
        make_actors(config, datasets.get(config.dataset, config.dataset_options, data_dir, progress))


def is_finished(job: Job) -> bool:
    """Whether the job's folder holds its run, whole or up to its pause; a run of other settings is refused."""
    if job.out is None or not (job.out / "config.yaml").exists():
        return False
    folder = RunFolder(job.out)
    difference = run_difference(folder.config(), job.config)
    if difference is not None:
        raise RunFolderError(
            f"The run in {job.out} {difference}. Ask for the settings that are there, or choose another --out."
        )
    results = folder.read_results()
    is_whole = results is not None and same_run(validate(results.get("config", {})), job.config)
    is_far_enough = job.is_paused and read_round(folder.checkpoint) >= job.last_round
    return (is_whole or is_far_enough) and folder.database.is_file()


def prepare_to_resume(job: Job) -> Job:
    """The job as it can be played now: resumed from its checkpoint, or anew, with useless remains cleared away."""
    if job.out is None or not (job.out / "config.yaml").exists():
        return job
    folder = RunFolder(job.out)  # of these settings, as `is_finished` has seen
    if folder.checkpoint.is_file() and folder.database.is_file():
        return job._replace(config=folder.config(), resumed=True)
    with locked_folder(job.out, "--out"):  # it may be in play at this moment, without checkpoints
        for name in ("run.sqlite", "run.sqlite-wal", "run.sqlite-shm", "results.json"):
            (job.out / name).unlink(missing_ok=True)
    return job._replace(resumed=False)


def count_rounds_left(job: Job) -> int:
    """How many rounds are left to play."""
    played = read_round(RunFolder(job.out).checkpoint) if job.out is not None and job.resumed else 0
    return max(0, job.last_round - played)


def read_played(job: Job) -> RunResult:
    """Read the results of a finished job from its folder; of a paused run the records so far."""
    if job.out is None:
        raise ValueError("only a run in a folder can be read")
    folder = RunFolder(job.out)
    if not job.is_paused:
        return read_run(folder)
    return RunResult(config=job.config, summary={}, folder=job.out, **read_tables(folder, job.config.servers))


def read_run(folder: RunFolder) -> RunResult:
    """A finished run from its folder; the price of a link that was never drawn is not known there: nan."""
    results = folder.read_results()
    if results is None:
        raise RunFolderError(f"The run in {folder.path} is not finished. Go on with it by --resume {folder.path}.")
    if "config" not in results:
        raise RunFolderError(f"{folder.results} holds no settings. Finish the run again by --resume {folder.path}.")
    config = validate(results.pop("config"))
    summary = {**results, "run_folder": str(folder.path)}  # it may have been moved
    return RunResult(config=config, summary=summary, folder=folder.path, **read_tables(folder, config.servers))
