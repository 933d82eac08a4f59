"""What of a run is in its folder already: all of it, a part that can go on, or nothing of use."""

from __future__ import annotations

from typing import Any

from hatdfed.errors import RunFolderError
from hatdfed.runs.play import Job
from hatdfed.runs.recorder import RunResult
from hatdfed.runs.records.folder import RunFolder
from hatdfed.runs.records.lock import locked_folder
from hatdfed.runs.records.tables import read_tables
from hatdfed.setup.config import Config
from hatdfed.setup.layers import validate


def read_if_finished(job: Job) -> RunResult | None:
    """The run in the job's folder, if it is finished; a run of other settings is refused."""
    return read_run(RunFolder(job.out)) if job.out is not None and is_finished(job) else None


def is_finished(job: Job) -> bool:
    """Whether the job's folder holds its run, whole; a run of other settings is refused."""
    if job.out is None or not (job.out / "config.yaml").exists():
        return False
    folder = RunFolder(job.out)
    wanted, there = _settings(job.config), _settings(folder.config())
    for key in wanted:
        if there[key] != wanted[key]:
            raise RunFolderError(
                f"The run in {job.out} has {key} {there[key]!r}, but {wanted[key]!r} was asked for. "
                "Ask for the settings that are there, or choose another --out."
            )
    results = folder.read_results()
    is_whole = results is not None and _settings(validate(results.get("config", {}))) == wanted
    return is_whole and folder.database.is_file()


def prepare_to_resume(job: Job) -> Job:
    """Whether the run can go on from where it is; what cannot be used is cleared away."""
    if job.out is None or not (job.out / "config.yaml").exists():
        return job
    folder = RunFolder(job.out)  # of these settings, as `is_finished` has seen
    if folder.checkpoint.is_file() and folder.database.is_file():
        return job._replace(config=folder.config(), resumed=True)
    with locked_folder(job.out, "--out"):  # it may be in play at this moment, without checkpoints
        for name in ("run.sqlite", "run.sqlite-wal", "run.sqlite-shm", "results.json"):
            (job.out / name).unlink(missing_ok=True)
    return job._replace(resumed=False)


def read_run(folder: RunFolder) -> RunResult:
    """A finished run from its folder; the price of a link that was never drawn is not known there: nan."""
    results = folder.read_results()
    if results is None:
        raise RunFolderError(f"The run in {folder.path} is not finished. Go on with it by --resume {folder.path}.")
    config = validate(results.pop("config"))
    summary = {**results, "run_folder": str(folder.path)}  # it may have been moved
    return RunResult(config=config, summary=summary, folder=folder.path, **read_tables(folder, config.servers))


def _settings(config: Config) -> dict[str, Any]:
    """What decides a run's result."""
    return config.model_dump(mode="json", exclude={"checkpoint_every"})
