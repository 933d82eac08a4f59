"""One run from settings to results, and several of them side by side: what `hatdfed.run` and `hatdfed.compare` do."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hatdfed import loop
from hatdfed.build.program import Simulation, make_simulation
from hatdfed.config import Config
from hatdfed.coordinator import CoordinatorState
from hatdfed.errors import RunFolderError
from hatdfed.learning.datasets import load_dataset
from hatdfed.learning.datasets.base import Progress
from hatdfed.records.checkpoint import read_checkpoint, write_checkpoint
from hatdfed.records.database import Records, RunDatabase
from hatdfed.records.folder import RunFolder
from hatdfed.resolve import merge_layers, notes, overlay, resolve
from hatdfed.round import RoundRecord
from hatdfed.summary import personal_accuracy, summarise

SMALL_NETWORK = 100_000  # parameters

OnRound = Callable[[Config, RoundRecord], None]


@dataclass(frozen=True)
class RunResult:
    """What a run brought; lists of plain records that a data frame takes as they are."""

    config: Config
    summary: dict[str, Any]
    rounds: Records
    servers: Records
    links: Records
    ledger: Records
    link_joules: NDArray[np.float64]  # [N, N] price of a whole model on every link
    folder: Path | None


def run(
    config: Config | Mapping[str, Any] | None = None,
    *,
    out: Path | str | None = None,
    data_dir: Path | str | None = None,
    on_round: OnRound | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> RunResult:
    """Play one run. Settings come from `config`, from keywords, or both; `out` keeps it in a folder.

    >>> result = run(method="rnd", rounds=1, servers=2)
    >>> result.summary["rounds"]
    1
    """
    complete = _complete(config, settings)
    simulation = _simulation(complete, data_dir, progress)
    folder = None if out is None else RunFolder.create(Path(out), complete)
    return _play(complete, simulation, folder, None, on_round)


def resume(
    path: Path | str,
    settings: Mapping[str, Any] | None = None,
    *,
    data_dir: Path | str | None = None,
    on_round: OnRound | None = None,
    progress: Progress | None = None,
) -> RunResult:
    """Go on with the run in a folder, to the same result as if it had never stopped; `rounds` may grow."""
    folder = RunFolder.open(Path(path))
    config = _same_run(folder, settings or {})
    simulation = _simulation(config, data_dir, progress)
    state, snapshot = read_checkpoint(folder.checkpoint, config_digest(config), simulation.coordinator)
    simulation.fleet.restore(snapshot)
    folder.write_config(config)
    return _play(config, simulation, folder, state, on_round)


def config_digest(config: Config) -> str:
    """A short name for a configuration, the same on every machine."""
    text = json.dumps(config.model_dump(mode="json", exclude={"rounds", "horizon", "checkpoint_every"}), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _complete(config: Config | Mapping[str, Any] | None, settings: Mapping[str, Any]) -> Config:
    if isinstance(config, Config):
        return config if not settings else resolve(merge_layers(config.model_dump(), settings))
    return resolve(merge_layers(config or {}, settings))


def _simulation(config: Config, data_dir: Path | str | None, progress: Progress | None) -> Simulation:
    where = None if data_dir is None else Path(data_dir)
    dataset = load_dataset(config.dataset, data_dir=where, progress=progress, options=config.dataset_options)
    return make_simulation(config, dataset, run=config_digest(config))


def _same_run(folder: RunFolder, settings: Mapping[str, Any]) -> Config:
    """The folder's own settings; others may be named only if they say the same, but for more rounds."""
    old = folder.config()
    before = old.model_dump()
    new = resolve(overlay(before, settings))
    if new.rounds < old.rounds:
        raise RunFolderError(
            f"The run in {folder.path} was started for {old.rounds} rounds, but {new.rounds} were asked for. "
            f"Ask for {old.rounds} or more."
        )
    if new.rounds > old.rounds and new.horizon is None:
        new = new.model_copy(update={"horizon": old.rounds})
    if (new.horizon or new.rounds) != (old.horizon or old.rounds):
        raise RunFolderError(
            f"The run in {folder.path} has horizon {old.horizon or old.rounds}, but {new.horizon} was asked for. "
            "Resume it with its own settings, or start a new run."
        )
    for key, value in new.model_dump(exclude={"rounds", "horizon", "checkpoint_every"}).items():
        if value != before[key]:
            raise RunFolderError(
                f"The run in {folder.path} has {key} {before[key]!r}, but {value!r} was asked for. "
                "Resume it with its own settings, or start a new run."
            )
    return new


def _play(
    config: Config,
    simulation: Simulation,
    folder: RunFolder | None,
    state: CoordinatorState | None,
    on_round: OnRound | None,
) -> RunResult:
    """The main loop with its sinks: records, checkpoints, and whoever watches."""
    database = RunDatabase(None if folder is None else folder.database)
    database.forget_from(0 if state is None else state.t)
    if state is not None and [row["t"] for row in database.records("rounds")] != list(range(state.t)):
        raise RunFolderError(
            f"The checkpoint stands at round {state.t}, but not all rounds before it are in {database.path}. "
            "Records were lost, so the run cannot go on; start it again."
        )
    clock = _Stopwatch()

    def keep(state: CoordinatorState, record: RoundRecord) -> None:
        database.write(record, clock.lap())

    def checkpoint(state: CoordinatorState, record: RoundRecord) -> None:
        every = config.checkpoint_every
        if folder is not None and every and (state.t % every == 0 or state.t == config.rounds):
            database.flush()  # records may be ahead of a checkpoint, never behind it
            write_checkpoint(folder.checkpoint, config_digest(config), state, simulation.fleet.snapshot())

    def watch(state: CoordinatorState, record: RoundRecord) -> None:
        if on_round is not None:
            on_round(config, record)

    if state is None:
        state = simulation.coordinator.start(_first_accuracy(config, simulation))
        if folder is not None and config.checkpoint_every:  # a run that is killed early can go on, too
            write_checkpoint(folder.checkpoint, config_digest(config), state, simulation.fleet.snapshot())
    try:
        with _suitable_threads(simulation.fleet.num_params):
            sinks = (keep, checkpoint, watch)
            loop.run(simulation.coordinator, simulation.fleet, rounds=config.rounds, sinks=sinks, state=state)
            return _finish(config, simulation, folder, database)
    finally:
        database.close()


def _first_accuracy(config: Config, simulation: Simulation) -> NDArray[np.float64]:
    """P_0: measured once, or zero as released (D13, D8)."""
    if config.first_gain_from == "zero":
        return np.zeros(config.servers)
    return simulation.fleet.validation_accuracy()


def _finish(config: Config, simulation: Simulation, folder: RunFolder | None, database: RunDatabase) -> RunResult:
    """Read the test set, once, and write the results."""
    rounds = database.records("rounds")
    correct = simulation.fleet.correct(simulation.test)
    personal = personal_accuracy(correct, simulation.test.y.numpy(), simulation.label_shares)
    summary = summarise(config, correct.mean(axis=1), personal, rounds)
    summary["notes"] = notes(config)
    if simulation.fleet.refused:
        counts = ", ".join(f"{count} {reason}" for reason, count in sorted(simulation.fleet.refused.items()))
        summary["notes"].append(f"Models were refused by their receivers: {counts}.")
    if folder is not None:
        summary["run_folder"] = str(folder.path)
        folder.write_json("results.json", {**summary, "config": config.model_dump(mode="json")})
    return RunResult(
        config=config,
        summary=summary,
        rounds=rounds,
        servers=database.records("servers"),
        links=database.records("links"),
        ledger=database.records("ledger"),
        link_joules=simulation.coordinator.prices.link_joules,
        folder=None if folder is None else folder.path,
    )


@contextmanager
def _suitable_threads(num_params: int) -> Iterator[None]:
    """One thread for a small network: it has too little to share out, and idle threads that wait cost much."""
    before = torch.get_num_threads()
    torch.set_num_threads(1 if num_params < SMALL_NETWORK else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class _Stopwatch:
    def __init__(self) -> None:
        self._last = time.perf_counter()

    def lap(self) -> float:
        now = time.perf_counter()
        elapsed, self._last = now - self._last, now
        return elapsed
