"""Who plays the runs of a sweep: processes on this machine, or tasks on a cluster (`hatdfed.sweeps.executors.ray`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from hatdfed.runs.play import Job
from hatdfed.sweeps.batches import OnDone, OnFailed, PlayOptions, default_processes, play_jobs
from hatdfed.sweeps.retries import RETRIES


class Executor(Protocol):
    """Plays jobs and tells about each; the caller neither knows nor cares where.

    What every executor promises:

    - Jobs are put together into batches of compatible runs (`batches.make_batches`) and each batch is one task.
    - `done(index, kept)` is told in the caller's thread as runs end; `kept` is `how.keep(result)`, or the result. By
      then the job's folder (`job.out`), if it has one, is complete on the caller's machine, results.json and all.
    - A batch that dies or raises is tried again as `attempts.Attempts` says; the rest goes on. A run that is given up
      is told by `failed(index, reason)`, exactly once and never after `done`. `batches.Game` keeps these books.
    - A folder that is half played is looked at again before every try (`standing.prepare_to_resume`).
    - `how.on_rounds` is told how many rounds all runs have played and will have played; it never goes back.
    - A KeyboardInterrupt passes through, after every process or task that was started has been stopped.
    """

    def play(self, jobs: Mapping[int, Job], how: PlayOptions, done: OnDone, failed: OnFailed) -> None:
        """Play all of them; returns when each has been told to be done or failed."""


@dataclass(frozen=True)
class LocalExecutor:
    """Processes on this machine; the number of them by the cores or the GPU, unless it is given.

    A single process is this one: then what kills it ends the sweep, which can be started again.
    """

    processes: int | None = None
    retries: int = RETRIES

    def play(self, jobs: Mapping[int, Job], how: PlayOptions, done: OnDone, failed: OnFailed) -> None:
        """Play all of them."""
        servers = sum(job.config.servers for job in jobs.values())
        processes = self.processes or default_processes(how.placement, servers)
        play_jobs(jobs, processes, how, done, failed, retries=self.retries)
