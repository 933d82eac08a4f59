"""Many runs: those that can share a fleet are played together, and batches of them in several processes.

On a CPU each process has a share of the cores. On a GPU processes take turns: while the coordinators of one batch
think, the GPU works on another.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hatdfed.core.metrics import METRICS
from hatdfed.core.policies import POLICIES
from hatdfed.core.training import TRAINING
from hatdfed.data.datasets import DATASETS, LoadedDatasets, is_given_in_python
from hatdfed.data.partitioners import PARTITIONERS
from hatdfed.errors import ConfigError, HatdfedError
from hatdfed.registry import Registry
from hatdfed.runs.play import Job, play
from hatdfed.runs.progress import OnRounds
from hatdfed.runs.result import RunResult
from hatdfed.server.aggregation import AGGREGATORS
from hatdfed.server.codecs import CODECS
from hatdfed.server.losses import LOSSES
from hatdfed.server.networks import NETWORKS
from hatdfed.setup.build.placement import Placement, device_of
from hatdfed.setup.config import Config
from hatdfed.setup.methods import METHODS
from hatdfed.setup.run_identity import fleet_key
from hatdfed.sweeps.catalogue import PlannedRun, State, count_rounds_left, is_finished, prepare_to_resume, read_played
from hatdfed.sweeps.retries import Attempts
from hatdfed.sweeps.workers import Workers

# Servers in one batch; a CPU gains little from more.
SERVERS_AT_ONCE = {"cpu": 20, "cuda": 110}
GPU_PROCESSES = 6

OnDone = Callable[[int, Any], None]  # the number of a job, and what is kept of it
OnFailed = Callable[[int, str], None]  # the number of a job that was given up, and why, in one line
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
class PlayOptions:
    """Options that all runs of a batch share, and callbacks for their progress."""

    placement: Placement
    data_dir: Path | str | None = None
    on_rounds: OnRounds | None = None
    on_note: Callable[[str], None] | None = None
    keep: Callable[[RunResult], Any] | None = None  # what of a run is worth keeping; all of it by default
    on_batch: Callable[[], None] | None = None  # after the runs of a batch have been told to be done
    limit: TimeLimit = field(default_factory=lambda: TimeLimit(float("inf")))
    datasets: LoadedDatasets = field(default_factory=LoadedDatasets)  # in this process; others load their own


Play = Callable[[Batch, PlayOptions, OnDone, OnFailed | None], None]  # as `Executor.play`


class BatchScheduler:
    """Batches that are being played, here or elsewhere: which comes next, and who is told what about those that end."""

    def __init__(
        self, batches: Sequence[Batch], how: PlayOptions, done: OnDone, failed: OnFailed | None, retries: int = 0
    ) -> None:
        self.how, self._done, self._failed = how, done, failed
        self._attempts = Attempts(batches, retries)
        self._rounds_ended = self._rounds_told = 0
        self._rounds_left = {index: count_rounds_left(job) for batch in batches for index, job in batch.items()}
        self._rounds_in_all = sum(self._rounds_left.values())

    def take(self) -> Batch | None:
        """The next batch for which there is time; None: what is in play may still come back."""
        return self._attempts.take(self.how.limit.allows)

    def rounds(self, in_play: int) -> None:
        """How many rounds the batches in play have played; what is tried again does not count twice."""
        self._rounds_told = max(self._rounds_told, min(self._rounds_ended + in_play, self._rounds_in_all))
        if self.how.on_rounds is not None and self._rounds_in_all:
            self.how.on_rounds(self._rounds_told, self._rounds_in_all)

    def ended(self, batch: Batch, kept: Sequence[Any], seconds: float) -> None:
        """A batch was played to its end."""
        self.how.limit.learn(batch, seconds)
        for index, result in zip(batch, kept, strict=True):
            self._tell(index, result)
        if self.how.on_batch is not None:
            self.how.on_batch()

    def died(self, batch: Batch, error: Exception) -> None:
        """A batch was not: runs that had ended are kept, the others come again, or are given up."""
        if self._failed is None:
            raise error
        left: dict[int, Job] = {}
        for index, job in batch.items():
            try:
                if job.out is not None and is_finished(job):
                    result = read_played(job)
                    self._tell(index, result if self.how.keep is None else self.how.keep(result))
                else:
                    left[index] = prepare_to_resume(job)
            except (HatdfedError, OSError) as trouble:  # its folder has become unusable
                self._give_up(index, trouble, self._failed)
        for index in self._attempts.died(left):
            self._give_up(index, error, self._failed)

    def _tell(self, index: int, kept: Any) -> None:
        self._rounds_ended += self._rounds_left[index]
        self._done(index, kept)

    def _give_up(self, index: int, error: Exception, failed: OnFailed) -> None:
        self._rounds_ended += self._rounds_left[index]
        failed(index, one_line(error))


def one_line(error: BaseException) -> str:
    """Why something did not work, for a list of such things."""
    text = " ".join(str(error).split())
    return text if isinstance(error, HatdfedError) and text else f"{type(error).__name__}: {text or 'no reason given'}"


class _TimeIsUpError(Exception):
    """Thrown out of a batch that has to be given up."""


def default_processes(placement: Placement, servers: int) -> int:
    """One for each core; on a GPU as many as keep it busy, and no more than there are whole batches of `servers`."""
    cores = os.cpu_count() or 1
    if device_of(placement) == "cpu":
        return cores
    return max(1, min(GPU_PROCESSES, cores // 2, servers // SERVERS_AT_ONCE["cuda"]))


def play_jobs(
    jobs: Batch, processes: int, how: PlayOptions, done: OnDone, failed: OnFailed | None = None, *, retries: int = 0
) -> None:
    """Play all jobs, or those that the time limit leaves room for, as many processes at a time.

    Where somebody wants to be told what `failed`, a batch that dies is tried again so many times (`attempts`) and the
    others go on; otherwise its error ends everything.
    """
    batches = make_batches(jobs, processes, SERVERS_AT_ONCE[device_of(how.placement)])
    game = BatchScheduler(batches, how, done, failed, retries)
    if min(processes, len(batches)) > 1:
        refuse_what_others_lack([job.config for job in jobs.values()])
        _play_in_processes(game, min(processes, len(batches)))
    else:
        _play_in_this_process(game)


def refuse_what_others_lack(configs: Iterable[Config]) -> None:
    """Refuse what other processes cannot know."""
    if (lack := find_what_others_lack(configs)) is not None:
        raise ConfigError(lack)


def find_what_others_lack(configs: Iterable[Config]) -> str | None:
    """Say what other processes cannot know: data that are Python objects, and things of a notebook or main block."""
    for config in configs:
        if is_given_in_python(config.dataset, config.dataset_options):
            return (
                f"The data {config.dataset!r} were given as Python objects, which worker processes do not have. Use "
                "one process (jobs=1), or save them with numpy.savez and name the file."
            )
        for registry, name in _named_things(config):
            if registry.is_of_notebook(name):
                return (
                    f"{name!r} of {registry.group} was added in this notebook, which worker processes cannot read. Use "
                    "one process (jobs=1), or put it into a .py file and import that."
                )
            if registry.is_of_main_block(name):
                return (
                    f"{name!r} of {registry.group} was added in the block `if __name__ == '__main__':`, which worker "
                    "processes do not run. Add it above that line or in a module of its own, or use one process "
                    "(jobs=1)."
                )
    return None


def _named_things(config: Config) -> list[tuple[Registry[Any], str]]:
    return [
        (METHODS, config.method),
        (DATASETS, config.dataset),
        (PARTITIONERS, config.split),
        (POLICIES, config.policy.name),
        (TRAINING, config.training.name),
        (AGGREGATORS, config.aggregator.name),
        (LOSSES, config.loss.name),
        *((METRICS, name) for name in config.metrics),
        (NETWORKS, config.network),
        (CODECS, config.codec),
    ]


def play_runs(
    runs: Sequence[PlannedRun],
    play: Play,
    how: PlayOptions,
    done: Callable[[PlannedRun, Any], None],
    failed: Callable[[PlannedRun, str], None] | None = None,
    *,
    read: Callable[[Job], Any] = read_played,
) -> None:
    """Bring every run to its end: those that are finished are read from their folders, the rest is played.

    `done` is told each run with what `how.keep` keeps of it or `read` makes of its folder, which is by default all.
    """
    states = [run.state for run in runs]  # all of them before the first is played: any folder may be refused
    for run, state in zip(runs, states, strict=True):
        if state == State.DONE and run.folder is not None:
            done(run, read(run.job))
    left = {i: prepare_to_resume(run.job) for i, run in enumerate(runs) if states[i] != State.DONE}
    on_failed = None if failed is None else lambda index, reason: failed(runs[index], reason)
    how = replace(how, on_rounds=_count_earlier(runs, left, how.on_rounds))
    play(left, how, lambda index, kept: done(runs[index], kept), on_failed)


def _count_earlier(runs: Sequence[PlannedRun], left: Batch, on_rounds: OnRounds | None) -> OnRounds | None:
    """Let rounds that were played before, of runs that are finished or resumed, count as played."""
    if on_rounds is None:
        return None
    before = sum(run.job.last_round for run in runs) - sum(map(count_rounds_left, left.values()))
    return lambda played, to_play: on_rounds(before + played, before + to_play)


def server_rounds(batch: Batch) -> int:
    """The rounds of all servers of a batch, as the measure of its size."""
    return sum(job.config.servers * job.last_round for job in batch.values())


def make_batches(jobs: Batch, processes: int, servers_at_once: int) -> list[dict[int, Job]]:
    """Jobs that can be played together, small enough for every process to get some, where it can be."""
    most = min(servers_at_once, -(-sum(job.config.servers for job in jobs.values()) // processes))
    kinds: dict[str, list[dict[int, Job]]] = {}
    for index, job in jobs.items():
        alike = kinds.setdefault(fleet_key(job.config), [{}])
        if alike[-1] and sum(other.config.servers for other in alike[-1].values()) + job.config.servers > most:
            alike.append({})
        alike[-1][index] = job
    # In the order of the jobs: when time runs out, those that came first have been played, of whatever kind they are.
    return sorted((batch for alike in kinds.values() for batch in alike), key=lambda batch: next(iter(batch)))


def _kind_of(batch: Batch) -> str:
    return fleet_key(next(iter(batch.values())).config)


def _play_in_this_process(game: BatchScheduler) -> None:
    played = 0  # rounds of the batch in play

    def one_more() -> None:
        nonlocal played
        played += 1
        game.rounds(played)
        if game.how.limit.is_over:
            raise _TimeIsUpError

    while batch := game.take():
        start, played = time.monotonic(), 0
        try:
            kept = play_there(one_more, game.how.datasets, list(batch.values()), game.how)
        except _TimeIsUpError:
            return
        except Exception as error:  # noqa: BLE001 (whatever it is, other runs may do without it)
            game.died(batch, error)
        else:
            game.ended(batch, kept, time.monotonic() - start)


def _play_in_processes(game: BatchScheduler, processes: int) -> None:
    how = game.how
    # A function of this process means nothing in another, which also loads data sets of its own, each once.
    plain = PlayOptions(how.placement, how.data_dir, keep=how.keep)
    with Workers(processes, device_of(how.placement), LoadedDatasets()) as workers:
        while True:
            while workers.busy < processes and (batch := game.take()):
                workers.start(batch, play_there, list(batch.values()), plain)
            if not workers.busy:
                return  # all done, or no time for what is left
            for end in workers.finished():
                if end.error is None:
                    game.ended(end.task, end.result, end.seconds)
                else:
                    game.died(end.task, end.error)
            game.rounds(workers.count)
            if how.limit.is_over:
                return  # runs that are done are kept


def play_there(
    one_more: Callable[[], None], datasets: LoadedDatasets, jobs: Sequence[Job], how: PlayOptions
) -> list[Any]:
    """Play runs together, in this process or another; `one_more` is told every round."""
    first = jobs[0].config
    dataset = datasets.get(first.dataset, first.dataset_options, how.data_dir)
    results = play(jobs, how.placement, dataset=dataset, on_round=lambda *_: one_more(), on_note=how.on_note)
    return results if how.keep is None else [how.keep(result) for result in results]
