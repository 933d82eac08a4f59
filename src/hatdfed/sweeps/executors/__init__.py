"""Who plays the runs of a sweep: processes on this machine, or tasks on a Ray cluster (`executors.ray`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Protocol

from hatdfed.errors import ConfigError, MissingDependencyError, require_one_of
from hatdfed.runs.play import Job
from hatdfed.sweeps.batches import (
    OnDone,
    OnFailed,
    PlayOptions,
    default_processes,
    find_what_others_lack,
    play_jobs,
)
from hatdfed.sweeps.retries import RETRIES

EXECUTORS = ("local", "ray")


class Executor(Protocol):
    """Plays jobs and tells about each; the caller neither knows nor cares where.

    What every executor promises:

    - Jobs are put together into batches of compatible runs (`batches.make_batches`) and each batch is one task.
    - `done(index, kept)` is told in the caller's thread as runs end; `kept` is `how.keep(result)`, or the result. By
      then the job's folder (`job.out`), if it has one, is complete on the caller's machine, results.json and all.
    - A batch that dies or raises is tried again as `retries.Attempts` says; the rest goes on. A run that is given up
      is told by `failed(index, reason)`, exactly once and never after `done`; where `failed` is None, the error ends
      everything instead. `batches.BatchScheduler` keeps these books.
    - A folder that is half played is looked at again before every try (`catalogue.prepare_to_resume`).
    - `how.on_rounds` is told how many rounds all runs have played and will have played; it never goes back.
    - A KeyboardInterrupt passes through, after every process or task that was started has been stopped.
    """

    def play(self, jobs: Mapping[int, Job], how: PlayOptions, done: OnDone, failed: OnFailed | None) -> None:
        """Play all of them; returns when each has been told to be done or failed."""


@dataclass(frozen=True)
class LocalExecutor:
    """Processes on this machine; the number of them by the cores or the GPU, unless it is given.

    It is one for data that are Python objects and things that were added in a notebook or in a script's main block.

    A single process is this one: then what kills it ends the sweep, which can be started again.
    """

    processes: int | None = None
    retries: int = RETRIES

    def __post_init__(self) -> None:
        if self.processes is not None and (not isinstance(self.processes, int) or self.processes < 1):
            raise ConfigError(f"jobs is {self.processes!r}, but must be a number of processes, at least 1.")

    def play(self, jobs: Mapping[int, Job], how: PlayOptions, done: OnDone, failed: OnFailed | None) -> None:
        """Play all of them."""
        processes = self.processes or _choose_processes(jobs, how)
        play_jobs(jobs, processes, how, done, failed, retries=self.retries)


def _choose_processes(jobs: Mapping[int, Job], how: PlayOptions) -> int:
    """One where others could not know what is to be played."""
    if find_what_others_lack(job.config for job in jobs.values()) is not None:
        return 1
    return default_processes(how.placement, sum(job.config.servers for job in jobs.values()))


def make_executor(name: str = "local", *, jobs: int | None = None, retries: int = RETRIES, **ray: Any) -> Executor:
    """The executor called `name`; `ray` are the settings of a cluster: address, cpus_per_batch, gpus_per_batch."""
    require_one_of("--executor", name, EXECUTORS)
    given = {key: value for key, value in ray.items() if value is not None}
    if name == "local":
        if given:
            option = next(iter(given)).replace("_", "-")
            raise ConfigError(f"--{option} is for a cluster. Use --executor ray, or leave it out.")
        return LocalExecutor(jobs, retries)
    if jobs is not None:
        raise ConfigError("--jobs counts processes of this machine. With --executor ray, use --cpus-per-batch.")
    if find_spec("ray") is None:
        raise MissingDependencyError("--executor ray needs Ray, which is not installed: pip install 'hatdfed[ray]'.")
    from hatdfed.sweeps.executors.ray import RayExecutor  # imported only where it is asked for

    executor: Executor = RayExecutor(retries=retries, **given)
    return executor
