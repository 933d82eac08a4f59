"""Plays one run from complete settings to results, or several at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from hatdfed.core import loop
from hatdfed.core.coordinator import CoordinatorState
from hatdfed.core.fleet import Fleet
from hatdfed.core.loop import RunInPlay
from hatdfed.core.refusals import describe_received
from hatdfed.data.datasets import load_dataset
from hatdfed.data.datasets.base import Dataset, Progress
from hatdfed.fleets.stacked.memory import SMALL_NETWORK, DoesNotFitError
from hatdfed.runs.process_memory import keep_freed_memory
from hatdfed.runs.recorder import OnRound, Recorder, RunStopped, open_records
from hatdfed.runs.records.checkpoint import Checkpoints
from hatdfed.runs.records.folder import RunFolder
from hatdfed.runs.records.lock import locked_folder
from hatdfed.runs.result import RunResult
from hatdfed.runs.trained_models import keep_models
from hatdfed.setup.build.placement import Placement, choose_placement
from hatdfed.setup.build.simulation import SimulatedRuns, Simulation, describe_computation, make_batch
from hatdfed.setup.config import Config
from hatdfed.setup.notes import collect_notes
from hatdfed.setup.run_identity import resume_digest


class Job(NamedTuple):
    """One run of a batch."""

    config: Config
    out: Path | None = None
    resumed: bool = False  # go on with what is in `out`
    keeps_models: bool = False  # in memory, where there is no folder
    until: int | None = None  # pause after so many rounds, with a checkpoint and without results

    @property
    def last_round(self) -> int:
        """How many rounds it will have played: all, or those before its pause."""
        return self.config.rounds if self.until is None else min(self.until, self.config.rounds)

    @property
    def is_paused(self) -> bool:
        """Whether it ends before its last round; then the test set is not read."""
        return self.last_round < self.config.rounds


def play(
    jobs: Sequence[Job],
    placement: Placement,
    *,
    data_dir: Path | str | None = None,
    dataset: Dataset | None = None,
    on_round: OnRound | None = None,
    progress: Progress | None = None,
    on_note: Callable[[str], None] | None = None,
) -> list[RunResult]:
    """Play runs of one data set and one network together; each has its own folder and its own records.

    The data set is read from `data_dir` unless it is given. Runs that do not fit into memory together are played in
    parts, which `on_note` is told.
    """
    keep_freed_memory()
    if dataset is None:
        first, where = jobs[0].config, None if data_dir is None else Path(data_dir)
        dataset = load_dataset(first.dataset, data_dir=where, progress=progress, options=first.dataset_options)
    return _play_what_fits(jobs, dataset, placement, on_round, on_note)


def _play_what_fits(
    jobs: Sequence[Job],
    dataset: Dataset,
    placement: Placement,
    on_round: OnRound | None,
    on_note: Callable[[str], None] | None,
) -> list[RunResult]:
    if len(jobs) > 1 and choose_placement(placement).fleet != "stacked":
        # They gain nothing from being together, and one after another takes the memory of one.
        return [_play_what_fits([job], dataset, placement, on_round, on_note)[0] for job in jobs]
    configs = [job.config for job in jobs]
    try:
        batch = make_batch(configs, dataset, placement, names=[resume_digest(config) for config in configs])
    except DoesNotFitError as error:
        if len(jobs) == 1:
            raise
        reason = str(error)
    else:
        try:
            return _play_batch(jobs, batch, on_round)
        except torch.OutOfMemoryError:  # the prediction was too low, or memory is in pieces
            if len(jobs) == 1 or any(job.out is not None for job in jobs):
                raise
            reason = "The GPU ran out of memory in the middle; they begin anew."
        del batch
        torch.cuda.empty_cache()
    if on_note is not None:
        on_note(f"{len(jobs)} runs do not fit at once, so they are executed in two parts. {reason}")
    half = (len(jobs) + 1) // 2
    parts = (jobs[:half], jobs[half:])
    return [result for part in parts for result in _play_what_fits(part, dataset, placement, on_round, on_note)]


def _play_batch(jobs: Sequence[Job], batch: SimulatedRuns, on_round: OnRound | None) -> list[RunResult]:
    with ExitStack() as stack, _suitable_threads(batch.num_total):
        stack.callback(batch.fleets.close)
        for job in jobs:  # all of them before the first is touched: any may be refused
            stack.enter_context(_lock(job))
        opened = [
            _open(job, simulation, notes, on_round, stack)
            for job, simulation, notes in zip(jobs, batch.simulations, batch.notes, strict=True)
        ]
        runs = [
            RunInPlay(coordinator, recorder.begin(coordinator, state), job.last_round, [recorder.keep])
            for job, coordinator, (recorder, state) in zip(jobs, batch.coordinators, opened, strict=True)
        ]
        with suppress(RunStopped):  # a callback's wish; only single runs have callbacks
            loop.run(runs, batch.fleets)
        results = [
            recorder.result(coordinator.prices, is_paused=job.is_paused)
            for job, coordinator, (recorder, _) in zip(jobs, batch.coordinators, opened, strict=True)
        ]
        return [
            replace(result, last_models=keep_models(simulation.fleet)) if job.keeps_models else result
            for job, result, simulation in zip(jobs, results, batch.simulations, strict=True)
        ]


def _open(
    job: Job, simulation: Simulation, told: Sequence[str], on_round: OnRound | None, stack: ExitStack
) -> tuple[Recorder, CoordinatorState | None]:
    """The run's recorder, and the state to go on from if it is resumed; `stack` closes its records."""
    config, (coordinator, fleet), folder = job.config, simulation, _folder(job)
    store, state = None, None
    if folder is not None:
        whose, every = resume_digest(config), config.checkpoint_every
        store = Checkpoints(folder.checkpoint, whose, every, config.rounds, fleet, job.until)
        state = store.restore(coordinator) if job.resumed else None
    database = stack.enter_context(closing(open_records(folder, 0 if state is None else state.t)))
    if folder is not None and not job.resumed:
        folder.note_fleet(fleet.computed_by)
    if folder is not None and job.resumed:
        folder.write_config(config)  # only now: what cannot go on keeps the settings that it was played with
    watchers = [] if on_round is None else [lambda record, _: on_round(config, record)]
    notes = partial(_notes, config, fleet, told)
    return Recorder(config, fleet, folder, database, store=store, watchers=watchers, notes=notes), state


def _notes(config: Config, fleet: Fleet, told: Sequence[str]) -> list[str]:
    """How the settings were read, how the run was prepared and computed, and what was refused."""
    return [*collect_notes(config), *told, *_tell_computation(fleet), *describe_received(fleet.refused)]


def _tell_computation(fleet: Fleet) -> list[str]:
    """For a network without kernels of its own."""
    how = fleet.computed_by
    return [f"Computed by the {describe_computation(how)}."] if "because" in how else []


def _lock(job: Job) -> AbstractContextManager[None]:
    """The run's folder for oneself: two that play the same run would take away each other's rounds."""
    if job.out is None:
        return nullcontext()
    if job.resumed:
        RunFolder.open(job.out)  # what holds no run is left as it is
    return locked_folder(job.out, "--out")


def _folder(job: Job) -> RunFolder | None:
    if job.out is None:
        if job.resumed:
            raise ValueError("only a run in a folder can be resumed")
        return None
    return RunFolder.open(job.out) if job.resumed else RunFolder.create(job.out, job.config)


@contextmanager
def _suitable_threads(num_total: int) -> Iterator[None]:
    """One thread for a small network: it has too little to share out, and idle threads that wait cost much."""
    before = torch.get_num_threads()
    torch.set_num_threads(1 if num_total < SMALL_NETWORK else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
