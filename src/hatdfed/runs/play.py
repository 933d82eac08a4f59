"""One run from settings to results, or several at once: what `hatdfed.run` and `hatdfed.compare` do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from hatdfed.core import loop
from hatdfed.core.coordinator import CoordinatorState
from hatdfed.core.fleet import Fleet
from hatdfed.core.loop import RunInPlay
from hatdfed.core.refusals import describe_received
from hatdfed.core.round import RoundRecord
from hatdfed.data.datasets import load_dataset
from hatdfed.data.datasets.base import Dataset, Progress
from hatdfed.errors import ConfigError, RunFolderError, advising_on_interrupt
from hatdfed.fleets.stacked.memory import SMALL_NETWORK, DoesNotFitError
from hatdfed.runs.callbacks import Callback, tell_end, tell_rounds
from hatdfed.runs.process_memory import keep_freed_memory
from hatdfed.runs.progress import follow_rounds, interactive_counter
from hatdfed.runs.recorder import OnRound, Recorder, RunStopped, open_records
from hatdfed.runs.records.checkpoint import Checkpoints
from hatdfed.runs.records.cleaning import whole
from hatdfed.runs.records.folder import RunFolder
from hatdfed.runs.records.lock import locked_folder
from hatdfed.runs.result import RunResult
from hatdfed.runs.trained_models import keep_models
from hatdfed.setup.build.placement import Placement, choose_placement
from hatdfed.setup.build.simulation import SimulatedRuns, Simulation, describe_computation, make_batch
from hatdfed.setup.component_names import FLEETS
from hatdfed.setup.config import Config
from hatdfed.setup.layers import find_removed_choice, merge_layers, overlay, resolve
from hatdfed.setup.notes import collect_notes
from hatdfed.setup.run_identity import continued, resume_difference, resume_digest


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


def run(
    config: Config | Mapping[str, Any] | str | None = None,
    *,
    out: Path | str | None = None,
    data_dir: Path | str | None = None,
    on_round: OnRound | None = None,
    callbacks: Sequence[Callback] = (),
    progress: Progress | None = None,
    show_progress: bool | None = None,
    fleet: str = "auto",
    device: str = "auto",
    shards: int | None = None,
    address: str | None = None,
    target: str | None = None,
    **settings: Any,
) -> RunResult:
    """Execute one run. Settings come from `config`, from keywords, or both; `out` keeps it in a folder.

    `config` may be the name of a method: `run("rnd", rounds=20)`. Progress is shown in a terminal and in a notebook;
    `show_progress` says whether, `on_round` is told of every round, `progress` of downloads, and
    `callbacks` of rounds and the result; they may end the run early (docs/python.md).

    `dataset` is the name of a data set or data of your own: arrays or tensors (x, y), an .npz file, a folder of images,
    a torch or Hugging Face data set, or a pandas frame, of which `target` names the column to be learned
    (docs/data.md).

    `fleet` (stacked, mailbox, sharded) and `device` (cpu, cuda) say how it is computed: on CPUs the same but for
    round-off, on a GPU with training in TF32 and accuracies measured in half precision. A sharded fleet is one large
    run in so many `shards`, processes of the Ray cluster at `address` or of one on this machine.

    >>> result = run("rnd", rounds=1, servers=2)
    >>> result.summary["rounds"]
    1
    """
    complete = _complete(config, with_target(settings, target))
    job = Job(complete, None if out is None else Path(out), keeps_models=out is None)
    placement = Placement(fleet, device, shards, address)
    with _advise(job), _show_rounds(show_progress, job, tell_rounds(callbacks, on_round)) as watch:
        (result,) = play([job], placement, data_dir=data_dir, on_round=watch, progress=progress)
    tell_end(callbacks, result)
    return result


def resume(
    path: Path | str,
    settings: Mapping[str, Any] | None = None,
    *,
    data_dir: Path | str | None = None,
    on_round: OnRound | None = None,
    callbacks: Sequence[Callback] = (),
    progress: Progress | None = None,
    show_progress: bool | None = None,
    fleet: str = "auto",
    device: str = "auto",
    shards: int | None = None,
    address: str | None = None,
) -> RunResult:
    """Go on with the run in a folder, to the same result as if it had never stopped; `rounds` may grow.

    By default it goes on with the fleet that it was begun with. To the very same bits on the same fleet and device;
    elsewhere it goes on with their round-off. Data that were given
    as Python objects are given again, as `settings["dataset"]`.
    """
    folder = RunFolder.open(Path(path))
    job = Job(_same_run(folder, settings or {}), folder.path, resumed=True)
    fleet, shards = _same_fleet(folder, fleet, shards)
    placement = Placement(fleet, device, shards, address)
    with _advise(job), _show_rounds(show_progress, job, tell_rounds(callbacks, on_round)) as watch:
        (result,) = play([job], placement, data_dir=data_dir, on_round=watch, progress=progress)
    tell_end(callbacks, result)
    return result


def _advise(job: Job) -> AbstractContextManager[None]:
    """Say after Ctrl-C how to go on with a run in a folder."""
    again = None if job.out is None else f"hatdfed.resume({str(job.out)!r}) goes on from the last checkpoint, if any."
    return advising_on_interrupt(again)


@contextmanager
def _show_rounds(wanted: bool | None, job: Job, on_round: OnRound | None) -> Iterator[OnRound | None]:
    """Who is told of every round: the caller, and whoever looks on."""
    with interactive_counter("round", wanted) as show:
        if show is None:
            yield on_round
            return
        follow = follow_rounds(show, job.out)

        def both(config: Config, record: RoundRecord) -> None:
            follow(config, record)
            if on_round is not None:
                on_round(config, record)

        yield both


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


def with_target(settings: Mapping[str, Any], target: str | None) -> Mapping[str, Any]:
    """The settings with the column that is to be learned among the options of their data set."""
    return settings if target is None else overlay(settings, {"dataset_options": {"target": target}})


def _complete(config: Config | Mapping[str, Any] | str | None, settings: Mapping[str, Any]) -> Config:
    if isinstance(config, str):
        if "method" in settings:
            raise ConfigError(f"The method is named twice: {config!r} and {settings['method']!r}. Name it once.")
        config = {"method": config}
    if isinstance(config, Config):
        return config if not settings else resolve(merge_layers(config.model_dump(), settings))
    return resolve(merge_layers(config or {}, settings))


def _same_run(folder: RunFolder, settings: Mapping[str, Any]) -> Config:
    """The folder's own settings; others may be named only if they say the same, but for more rounds."""
    old = folder.config()
    removed = find_removed_choice(old)
    if removed is not None:
        raise RunFolderError(f"The run in {folder.path} can be shown and exported, but not gone on with: {removed}.")
    new = continued(old, resolve(overlay(old.model_dump(), settings)))
    if new.rounds < old.rounds:
        raise RunFolderError(
            f"The run in {folder.path} was started for {old.rounds} rounds, but {new.rounds} were asked for. "
            f"Ask for {old.rounds} or more."
        )
    difference = resume_difference(old, new)
    if difference is not None:
        raise RunFolderError(
            f"The run in {folder.path} {difference}. Resume it with its own settings, or start a new run."
        )
    return new


def _same_fleet(folder: RunFolder, fleet: str, shards: int | None) -> tuple[str, int | None]:
    """The fleet that is asked for; by default the one that the run was begun with, in as many shards."""
    begun = folder.first_fleet()
    if fleet != "auto" or begun.get("fleet") not in FLEETS:
        return fleet, shards
    return str(begun["fleet"]), shards or whole(begun.get("shards"))


@contextmanager
def _suitable_threads(num_total: int) -> Iterator[None]:
    """One thread for a small network: it has too little to share out, and idle threads that wait cost much."""
    before = torch.get_num_threads()
    torch.set_num_threads(1 if num_total < SMALL_NETWORK else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
