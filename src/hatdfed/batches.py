"""Many runs: those that can share a fleet are played together, and batches of them in several processes."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from hatdfed.build.placement import Placement, device_of
from hatdfed.build.simulation import network_key
from hatdfed.errors import HatdfedError
from hatdfed.experiment import Job, play
from hatdfed.session import RunResult

RUNS_AT_ONCE = {"cpu": 4, "cuda": 64}  # in one batch; a CPU gains little from more, and a stop loses those in play
LOOK_SECONDS = 0.5  # between two looks at how far worker processes are

OnRounds = Callable[[int, int], None]  # rounds that all runs together have played, and will have
OnDone = Callable[[int, RunResult], None]  # the number of a job, and what it brought


@dataclass(frozen=True)
class How:
    """What all runs have in common, and who is told about them."""

    placement: Placement
    data_dir: Path | str | None = None
    on_rounds: OnRounds | None = None
    on_note: Callable[[str], None] | None = None


def play_jobs(jobs: Mapping[int, Job], processes: int, how: How, done: OnDone) -> None:
    """Play all jobs, as many processes at a time; one process has a GPU for itself."""
    device = device_of(how.placement)
    processes = processes if device == "cpu" else 1
    batches = _batches(jobs, processes, RUNS_AT_ONCE[device])
    counter = _Counter(sum(job.config.rounds for job in jobs.values()), how.on_rounds)
    if min(processes, len(batches)) > 1:
        _play_in_processes(batches, min(processes, len(batches)), how, done, counter)
        return
    for batch in batches:
        for index, result in zip(batch, _play(list(batch.values()), how, counter.one_more), strict=True):
            done(index, result)


def _batches(jobs: Mapping[int, Job], processes: int, at_once: int) -> list[dict[int, Job]]:
    """Jobs that can be played together, in as many batches as there are processes to play them, or more."""
    alike: dict[str, dict[int, Job]] = {}
    for index, job in jobs.items():
        alike.setdefault(network_key(job.config), {})[index] = job
    most = max(1, min(at_once, -(-len(jobs) // processes)))
    return [
        dict(list(group.items())[start : start + most])
        for group in alike.values()
        for start in range(0, len(group), most)
    ]


def _play_in_processes(
    batches: Sequence[Mapping[int, Job]],
    processes: int,
    how: How,
    done: OnDone,
    counter: _Counter,
) -> None:
    # Spawned, not forked: torch's threads do not survive a fork.
    threads = max(1, (os.cpu_count() or 1) // processes)
    context = multiprocessing.get_context("spawn")
    shared = context.Value("q", 0)
    with ProcessPoolExecutor(processes, mp_context=context, initializer=_prepare, initargs=(threads, shared)) as pool:
        quiet = replace(how, on_note=None, on_rounds=None)  # a function of this process means nothing in another
        futures = {pool.submit(_play_there, list(batch.values()), quiet): list(batch) for batch in batches}
        try:
            waiting = set(futures)
            while waiting:
                finished, waiting = wait(waiting, timeout=LOOK_SECONDS, return_when=FIRST_COMPLETED)
                counter.set(shared.value)
                for future in finished:
                    for index, result in zip(futures[future], future.result(), strict=True):
                        done(index, result)
        except KeyboardInterrupt:
            for worker in list((pool._processes or {}).values()):  # runs that are done are kept
                worker.terminate()
            raise
        except BrokenProcessPool:
            raise HatdfedError(
                "A worker process was killed, perhaps for want of memory. Try again with --jobs 1."
            ) from None
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


_shared_counter: Any = None  # of a worker process: rounds that all workers have played


def _prepare(threads: int, shared: Any) -> None:
    global _shared_counter
    torch.set_num_threads(threads)
    _shared_counter = shared


def _play_there(jobs: Sequence[Job], how: How) -> list[RunResult]:
    """In a worker process."""

    def one_more() -> None:
        with _shared_counter.get_lock():
            _shared_counter.value += 1

    return _play(jobs, how, one_more)


def _play(jobs: Sequence[Job], how: How, one_more: Callable[[], None]) -> list[RunResult]:
    """Play runs together."""
    return play(jobs, how.placement, data_dir=how.data_dir, on_round=lambda *_: one_more(), on_note=how.on_note)


class _Counter:
    """Rounds played so far, told to whoever watches."""

    def __init__(self, total: int, tell: OnRounds | None) -> None:
        self._done, self._total, self._tell = 0, total, tell

    def one_more(self) -> None:
        self.set(self._done + 1)

    def set(self, done: int) -> None:
        self._done = done
        if self._tell is not None and self._total:
            self._tell(done, self._total)
