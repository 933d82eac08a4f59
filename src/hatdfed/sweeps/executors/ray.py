"""Plays the batches of a sweep as Ray tasks, on one machine or many (`hatdfed.sweeps.executors.Executor`).

One task a batch. Runs come back as plain bytes and are written to their folders here, so machines share no disk and a
run is in its folder once, however often it was begun. Ray is not asked to try anything again: a batch that is lost with
its machine comes back through the same books as one that dies in a process (`batches.BatchScheduler`).
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hatdfed.errors import ClusterError, ConfigError, HatdfedError
from hatdfed.fleets.sharded.ray_connection import connected
from hatdfed.fleets.sharded.ray_nodes import Need, check_versions, nodes_of, places
from hatdfed.registry import list_sources
from hatdfed.runs.play import Job
from hatdfed.setup.build.placement import Placement
from hatdfed.sweeps.batches import (
    SERVERS_AT_ONCE,
    Batch,
    BatchScheduler,
    OnDone,
    OnFailed,
    PlayOptions,
    make_batches,
    one_line,
    refuse_what_others_lack,
)
from hatdfed.sweeps.catalogue import read_played
from hatdfed.sweeps.executors.ray_task import Order, play_order
from hatdfed.sweeps.executors.run_archive import deliver, pack
from hatdfed.sweeps.retries import RETRIES
from hatdfed.version import __version__

LOOK_SECONDS = 0.5  # between two looks at how far the tasks are
COUNT_SECONDS = 5.0  # between two looks at which machines there are


@dataclass(frozen=True)
class RayExecutor:
    """Tasks of a Ray cluster: the one at `address`, or one of our own on this machine."""

    address: str | None = None
    cpus_per_batch: float = 1.0
    gpus_per_batch: float = 0.0
    retries: int = RETRIES

    def play(self, jobs: Mapping[int, Job], how: PlayOptions, done: OnDone, failed: OnFailed | None) -> None:
        """Play all of them."""
        if not jobs:
            return
        refuse_what_others_lack([job.config for job in jobs.values()])
        need = Need(self.cpus_per_batch, self.gpus_per_batch)
        placement = worker_placement(how.placement, need)
        with connected(self.address) as ray:
            nodes = nodes_of(ray)
            at_once = places(nodes, need)
            check_versions(ray, nodes)
            batches = make_batches(jobs, at_once, SERVERS_AT_ONCE[placement.device])
            _play(ray, BatchScheduler(batches, how, done, failed, self.retries), need, placement)


def worker_placement(asked: Placement, need: Need) -> Placement:
    """Choose where workers compute runs: on the GPU if a batch is given some of one, and never without."""
    if asked.device == "cuda" and not need.gpus:
        raise ConfigError(
            "--device is cuda, but a batch gets no GPU on the Ray cluster. Use, say, --gpus-per-batch 0.25."
        )
    device = "cuda" if need.gpus and asked.device != "cpu" and asked.fleet != "mailbox" else "cpu"
    return Placement(asked.fleet, device)


def _play(ray: Any, game: BatchScheduler, need: Need, placement: Placement) -> None:
    tasks: list[_Task] = []
    remote = ray.remote(num_cpus=need.cpus, num_gpus=need.gpus, max_retries=0)(play_order)
    at_once, counted_at = places(nodes_of(ray), need), time.monotonic()
    while True:
        while len(tasks) <= at_once and (batch := game.take()):  # one more than there is room for: nobody waits
            order = make_order(batch, game.how, need, placement)
            tasks.append(_Task(batch, remote.options(num_returns="streaming").remote(order)))
        if not tasks:
            return  # all done, or no time for what is left
        _listen(ray, tasks, game)
        tasks = [task for task in tasks if not task.is_over]
        game.rounds(sum(task.rounds for task in tasks))
        if game.how.limit.is_over:
            return  # runs that are done are kept; what is still played ends with the connection
        if time.monotonic() - counted_at > COUNT_SECONDS:
            at_once, counted_at = places(nodes_of(ray), need), time.monotonic()


def make_order(batch: Batch, how: PlayOptions, need: Need, placement: Placement) -> Order:
    """A batch in plain values."""
    return Order(
        version=__version__,
        runs={
            index: (job.config.model_dump(mode="json"), pack(job.out) if job.resumed and job.out else None, job.until)
            for index, job in batch.items()
        },
        fleet=placement.fleet,
        device=placement.device,
        data_dir=None if how.data_dir is None else str(how.data_dir),
        threads=need.threads,
        gpu_share=need.gpus,
        sources=tuple(list_sources()),
    )


@dataclass
class _Task:
    """A batch that is being played somewhere."""

    batch: Batch
    words: Any  # Ray's generator of what the task says
    since: float = field(default_factory=time.monotonic)
    rounds: int = 0
    kept: dict[int, Any] = field(default_factory=dict)
    error: str = ""
    is_over: bool = False


def _listen(ray: Any, tasks: list[_Task], game: BatchScheduler) -> None:
    """Wait a moment for what the tasks have to say."""
    by_words = {task.words: task for task in tasks}
    ray.wait(list(by_words), num_returns=1, timeout=LOOK_SECONDS)
    ready, _ = ray.wait(list(by_words), num_returns=len(by_words), timeout=0)
    for words in ready:
        task = by_words[words]
        try:
            _take_word(task, ray.get(next(words)), game)
        except StopIteration:
            _close(task, game, None)
        except (HatdfedError, ray.exceptions.RayError) as error:
            _close(task, game, error)


def _take_word(task: _Task, word: tuple[str, Any], game: BatchScheduler) -> None:
    kind, content = word
    if kind == "rounds":
        task.rounds = int(content)
    elif kind == "note" and game.how.on_note is not None:
        game.how.on_note(str(content))
    elif kind == "error":
        task.error = str(content)
    elif kind == "run":
        index, parcel = content
        task.kept[index] = _keep_delivered(task.batch[index], parcel, game.how)


def _keep_delivered(job: Job, parcel: Mapping[str, bytes], how: PlayOptions) -> Any:
    """The run in its folder; what is kept of it is taken from there, as if it had been played here."""
    if job.out is not None:
        deliver(parcel, job, job.out)
        result = read_played(job)
        return result if how.keep is None else how.keep(result)
    with tempfile.TemporaryDirectory(prefix="hatdfed-run-") as scratch:
        return _keep_delivered(
            job._replace(out=Path(scratch) / "run"), parcel, how
        )  # its folder is gone when it is read


def _close(task: _Task, game: BatchScheduler, error: Exception | None) -> None:
    task.is_over = True
    if error is None and not task.error and task.kept.keys() == task.batch.keys():
        game.ended(task.batch, [task.kept[index] for index in task.batch], time.monotonic() - task.since)
        return
    reason = task.error or ("A task ended without its runs." if error is None else lost_reason(error))
    if game.how.on_note is not None:
        game.how.on_note(f"{reason} Runs that have not come back are tried again, if they have not been too often.")
    game.died(task.batch, ClusterError(reason))


def lost_reason(error: Exception) -> str:
    """Why a task ended, in one line: Ray's own words have many."""
    if isinstance(error, HatdfedError):
        return one_line(error)
    kind = type(error).__name__
    if kind == "OutOfMemoryError":
        return (
            "A task was ended because its machine ran out of memory. Use more --cpus-per-batch, so that fewer share it."
        )
    if kind in _LOST:
        return "The machine or the process that executed this batch was lost."
    cause = getattr(error, "cause", None)
    return f"A task failed on its machine: {one_line(cause if isinstance(cause, Exception) else error)[:300]}"


# Ray's names of what happens to a task whose process or machine dies, or whose answer was there when it died.
_LOST = (
    "WorkerCrashedError", "NodeDiedError", "LocalRayletDiedError", "RaySystemError", "ObjectLostError",
    "ObjectFetchTimedOutError", "ObjectReconstructionFailedError", "OwnerDiedError", "ReferenceCountingAssertionError",
)  # fmt: skip
