"""Many runs: those that can share a fleet are played together, and batches of them in several processes.

On a CPU each process has a share of the cores. On a GPU processes take turns: while the coordinators of one batch
think, the GPU works on another.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

from hatdfed.build.placement import Placement, device_of
from hatdfed.build.simulation import network_key
from hatdfed.errors import HatdfedError
from hatdfed.experiment import Job, play
from hatdfed.learning.datasets import Dataset, load_dataset
from hatdfed.session import RunResult
from hatdfed.workers import Workers

# Servers in one batch; a CPU gains little from more, and a stop loses the runs in play.
SERVERS_AT_ONCE = {"cpu": 20, "cuda": 110}
GPU_PROCESSES = 6

OnRounds = Callable[[int, int], None]  # rounds that all runs together have played, and will have
OnDone = Callable[[int, Any], None]  # the number of a job, and what is kept of it
Batch = Mapping[int, Job]


class TimeLimit:
    """Starts no batch that would not end in time, as far as those before it can tell, and stops what does not."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds
        self._pace: dict[str, float] = {}  # seconds for a round of a server in a batch of a kind, among others

    @property
    def is_over(self) -> bool:
        """Whether the time is up."""
        return time.monotonic() >= self._end

    def allows(self, batch: Batch) -> bool:
        """Whether there is time for it."""
        known = list(self._pace.values()) or [0.0]
        pace = self._pace.get(_kind_of(batch), sum(known) / len(known))
        return time.monotonic() + pace * server_rounds(batch) < self._end

    def learn(self, batch: Batch, seconds: float) -> None:
        """How long a batch took; the last one of its kind tells most."""
        self._pace[_kind_of(batch)] = seconds / server_rounds(batch)


@dataclass(frozen=True)
class How:
    """What all runs have in common, and who is told about them."""

    placement: Placement
    data_dir: Path | str | None = None
    on_rounds: OnRounds | None = None
    on_note: Callable[[str], None] | None = None
    keep: Callable[[RunResult], Any] | None = None  # what of a run is worth keeping; all of it by default
    on_batch: Callable[[], None] | None = None  # after the runs of a batch have been told to be done
    limit: TimeLimit = field(default_factory=lambda: TimeLimit(float("inf")))


class _TimeIsUpError(Exception):
    """Thrown out of a batch that has to be given up."""


def default_processes(placement: Placement, servers: int) -> int:
    """One for each core; on a GPU as many as keep it busy, and no more than there are whole batches of `servers`."""
    cores = os.cpu_count() or 1
    if device_of(placement) == "cpu":
        return cores
    return max(1, min(GPU_PROCESSES, cores // 2, servers // SERVERS_AT_ONCE["cuda"]))


def play_jobs(jobs: Batch, processes: int, how: How, done: OnDone) -> None:
    """Play all jobs, or those that the time limit leaves room for, as many processes at a time."""
    device = device_of(how.placement)
    batches = _batches(jobs, processes, SERVERS_AT_ONCE[device])
    counter = _Counter(sum(job.config.rounds for job in jobs.values()), how.on_rounds)
    if min(processes, len(batches)) > 1:
        _play_in_processes(batches, min(processes, len(batches)), how, done, counter)
        return
    datasets = _Datasets()

    def one_more() -> None:
        counter.set(counter.done + 1)
        if how.limit.is_over:
            raise _TimeIsUpError

    for batch in batches:
        if not how.limit.allows(batch):
            return
        start = time.monotonic()
        try:
            kept = _play(list(batch.values()), how, datasets, one_more)
        except _TimeIsUpError:
            return
        how.limit.learn(batch, time.monotonic() - start)
        _tell(batch, kept, how, done)


def _tell(batch: Batch, kept: Sequence[Any], how: How, done: OnDone) -> None:
    for index, result in zip(batch, kept, strict=True):
        done(index, result)
    if how.on_batch is not None:
        how.on_batch()


def server_rounds(batch: Batch) -> int:
    """The size of a batch."""
    return sum(job.config.servers * job.config.rounds for job in batch.values())


def _batches(jobs: Batch, processes: int, servers_at_once: int) -> list[dict[int, Job]]:
    """Jobs that can be played together, in their order; small enough for every process to get some, where it can be."""
    most = min(servers_at_once, -(-sum(job.config.servers for job in jobs.values()) // processes))
    kinds: dict[str, list[dict[int, Job]]] = {}
    for index, job in jobs.items():
        alike = kinds.setdefault(_kind(job), [{}])
        if alike[-1] and sum(other.config.servers for other in alike[-1].values()) + job.config.servers > most:
            alike.append({})
        alike[-1][index] = job
    # Kinds take turns: what one leaves of a GPU, another may have use for.
    return [batch for turn in zip_longest(*kinds.values()) for batch in turn if batch is not None]


def _kind_of(batch: Batch) -> str:
    return _kind(next(iter(batch.values())))


def _kind(job: Job) -> str:
    """Runs that agree in this can share a fleet, and need not wait for each other's steps there."""
    config = job.config
    return network_key(config) + repr([config.local_passes, config.samples_per_round, config.batch_size])


def _play_in_processes(batches: Sequence[Batch], processes: int, how: How, done: OnDone, counter: _Counter) -> None:
    plain = How(how.placement, how.data_dir, keep=how.keep)  # a function of this process means nothing in another
    waiting = list(batches)
    with Workers(processes, device_of(how.placement)) as workers:
        try:
            while waiting or workers.busy:
                while workers.busy < processes and (batch := _next(waiting, how.limit)):
                    waiting.remove(batch)
                    workers.start(batch, _play_there, list(batch.values()), plain)
                if not workers.busy:
                    return  # no time for what is left
                for batch, kept, seconds in workers.finished():
                    how.limit.learn(batch, seconds)
                    _tell(batch, kept, how, done)
                counter.set(workers.count)
                if how.limit.is_over:
                    workers.stop()  # runs that are done are kept
                    return
        except BrokenProcessPool:
            raise HatdfedError(
                "A worker process was killed, perhaps for want of memory. Try again with --jobs 1."
            ) from None


def _next(waiting: Sequence[Batch], limit: TimeLimit) -> Batch | None:
    """The first for which there is time."""
    return next((batch for batch in waiting if limit.allows(batch)), None)


_datasets_here: list[_Datasets] = []  # of a worker process


def _play_there(one_more: Callable[[], None], jobs: Sequence[Job], how: How) -> list[Any]:
    """In a worker process."""
    if not _datasets_here:
        _datasets_here.append(_Datasets())
    return _play(jobs, how, _datasets_here[0], one_more)


def _play(jobs: Sequence[Job], how: How, datasets: _Datasets, one_more: Callable[[], None]) -> list[Any]:
    """Play runs together."""
    dataset = datasets.of(jobs[0], how.data_dir)
    results = play(jobs, how.placement, dataset=dataset, on_round=lambda *_: one_more(), on_note=how.on_note)
    return results if how.keep is None else [how.keep(result) for result in results]


class _Datasets:
    """Keeps the data sets that were read: another batch is likely to want them, too."""

    def __init__(self) -> None:
        self._known: dict[str, Dataset] = {}

    def of(self, job: Job, data_dir: Path | str | None) -> Dataset:
        name, options = job.config.dataset, job.config.dataset_options
        key = repr([name, options, data_dir])
        if key not in self._known:
            where = None if data_dir is None else Path(data_dir)
            self._known[key] = load_dataset(name, data_dir=where, options=options)
        return self._known[key]


class _Counter:
    """Rounds played so far, told to whoever watches."""

    def __init__(self, total: int, tell: OnRounds | None) -> None:
        self.done, self._total, self._tell = 0, total, tell

    def set(self, done: int) -> None:
        self.done = done
        if self._tell is not None and self._total:
            self._tell(done, self._total)
