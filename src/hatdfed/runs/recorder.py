"""Keeps what a run brings while it is played, in a simulation and in a deployment, and makes its results at the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hatdfed.core.coordinator import CoordinatorState
from hatdfed.core.energy.energy_model import EnergyPrices
from hatdfed.core.fleet import Fleet
from hatdfed.core.loop import Plans
from hatdfed.core.round import Caught, RoundRecord
from hatdfed.errors import ConfigError, RunFolderError
from hatdfed.runs.measured_energy import describe_energy_source, summarise_measured
from hatdfed.runs.privacy_loss import count_rounds_trained, describe_privacy
from hatdfed.runs.records.database import RunDatabase
from hatdfed.runs.records.folder import RunFolder
from hatdfed.runs.records.schema import MATRIX_LIMIT, ROUNDS, SERVERS
from hatdfed.runs.records.tables import read_trust, records_of
from hatdfed.runs.result import RunResult
from hatdfed.runs.summary import (
    describe_caught,
    describe_end,
    describe_metrics,
    describe_own_kind,
    outcome_notes,
    summarise,
)
from hatdfed.runs.trust_history import read_changes, summarise_groups
from hatdfed.runs.trust_log import KeptBeliefs, NewBeliefs, find_new_beliefs, is_verdict_round, restore_kept
from hatdfed.setup.config import Config
from hatdfed.setup.layers import considered_links

OnRound = Callable[[Config, RoundRecord], None]
Watcher = Callable[[RoundRecord, float], None]  # a round and how many seconds it took


class RunStopped(Exception):  # noqa: N818 (nothing is wrong)
    """A watcher, whose name this is, ends the run after the round that it was told of."""


class StateStore(Protocol):
    """Keeps the state that a stopped run goes on from: a checkpoint file, or a coordinator's journal."""

    def is_due(self, state: CoordinatorState) -> bool:
        """Whether this state is one to keep."""

    def write(self, state: CoordinatorState) -> None:
        """Keep it; the records of all rounds before it are on the disk already."""


def open_records(folder: RunFolder | None, next_round: int) -> RunDatabase:
    """The run's records without the rounds from `next_round` on, which are played (again); in memory without folder."""
    with ExitStack() as on_failure:
        database = RunDatabase(None if folder is None else folder.database)
        on_failure.callback(database.close)
        database.forget_from(next_round)
        if next_round and [row["t"] for row in database.records("rounds")] != list(range(next_round)):
            raise RunFolderError(
                f"The run stands at round {next_round}, but not all rounds before it are in {database.path}. "
                "Records were lost, so it cannot go on; put them back, or start a new run."
            )
        on_failure.pop_all()
        return database


class Recorder:
    """One run's records, saved states and results; `keep` is its sink in the main loop."""

    def __init__(
        self,
        config: Config,
        fleet: Fleet,
        folder: RunFolder | None,
        database: RunDatabase,
        *,
        store: StateStore | None,
        watchers: Sequence[Watcher] = (),
        notes: Callable[[], list[str]],
    ) -> None:
        """`watchers` are told of every round once it is kept; `notes` are sentences for whoever reads the results."""
        _refuse_taken_names(config.metrics)
        self._config = config
        self._fleet = fleet
        self._folder = folder
        self._database = database
        self._store = store
        self._watchers = watchers
        self._notes = notes
        self._summary: dict[str, Any] | None = None
        self._beliefs = _restore_beliefs(database)
        self._caught: tuple[Caught, ...] = ()
        self._last_round_at = time.perf_counter()
        self._has_played = False
        self._stopped_by: str | None = None  # a callback, before the last round

    def begin(self, coordinator: Plans, state: CoordinatorState | None) -> CoordinatorState:
        """The state to play from: the given one, or that before round 0, kept so that an early kill loses nothing."""
        if state is None:
            state = coordinator.start(self._first_accuracy())
            self._save(state)
        self._last_round_at, self._caught = time.perf_counter(), state.caught
        return state

    def keep(self, state: CoordinatorState, record: RoundRecord) -> None:
        """Write the round and, where it is due, the state; tell the watchers; make the results after the last round.

        A run that is done is finished at once: others beside it may go on for long, or be stopped.
        """
        now = time.perf_counter()
        seconds, self._last_round_at, self._caught = now - self._last_round_at, now, state.caught
        self._has_played = True
        self._database.write(record, seconds, self._note_beliefs(record))
        self._save(state)
        try:
            for watcher in self._watchers:
                watcher(record, seconds)
        except RunStopped as stop:
            self._stopped_by = str(stop)
            self._save(state, is_last=True)
            raise
        if state.t >= self._config.rounds:
            self.summary()

    def summary(self) -> dict[str, Any]:
        """The results: test data are read, once, and results.json is written."""
        if self._summary is None:
            self._summary = self._finish()
        return self._summary

    def result(self, prices: EnergyPrices, *, is_paused: bool = False) -> RunResult:
        """The results with all records, once the run has played its rounds; of a paused run the records so far."""
        config, folder = self._config, self._folder
        is_sparse = considered_links(config) is not None and config.servers > MATRIX_LIMIT
        return RunResult(
            config=config,
            summary={} if is_paused else self.summary(),
            rounds=self._database.records("rounds"),
            servers=records_of(self._database, folder, "servers", config.servers),
            links=records_of(self._database, folder, "links", config.servers),
            ledger=records_of(self._database, folder, "ledger", config.servers),
            link_joules=None if is_sparse else prices.link_joules,
            propensity=self._database.last_propensity(),
            folder=None if folder is None else folder.path,
            trust=read_trust(self._database),
        )

    def _note_beliefs(self, record: RoundRecord) -> NewBeliefs | None:
        """What is to be kept of the policy's beliefs after this round."""
        if (beliefs := record.beliefs) is None:
            return None
        with_verdicts = beliefs.links.num_servers <= MATRIX_LIMIT and is_verdict_round(record.t, self._config.rounds)
        self._beliefs, new = find_new_beliefs(self._beliefs, record.t, beliefs, with_verdicts=with_verdicts)
        return new

    def _first_accuracy(self) -> NDArray[np.float64]:
        """P_0: measured once, or zero as released (D13, D8)."""
        if self._config.first_gain_from == "zero":
            return np.zeros(self._fleet.num_servers)
        return self._fleet.validation_accuracy()

    def _save(self, state: CoordinatorState, *, is_last: bool = False) -> None:
        if self._store is not None and (is_last or self._store.is_due(state)):
            self._database.flush()  # records may be ahead of a state, never behind it
            self._store.write(state)

    def _finish(self) -> dict[str, Any]:
        self._database.flush()
        accuracy = self._fleet.final_accuracy()
        rounds = self._database.records("rounds")
        summary = summarise(self._config, accuracy, rounds)
        summary["accuracy_from"] = accuracy.measured_on
        summary["computed_by"] = self._find_computed_by()
        if self._config.privacy.clip is not None:
            counted = accuracy.private_rounds
            if counted is None:
                counted = tuple(count_rounds_trained(self._database.records("servers"), self._fleet.num_servers))
            summary["privacy"] = describe_privacy(self._config, counted)
        summary |= summarise_groups(read_changes(self._database.records("trust")))
        summary["caught"] = [each._asdict() for each in self._caught]
        source, measured = self._config.energy.source, summarise_measured(self._database)
        summary["energy_source"], summary["measured_energy"] = source, measured
        outcome = outcome_notes(self._config, rounds, self._fleet.refused)
        outcome += describe_energy_source(source, measured)
        figures = [*describe_own_kind(summary), *describe_metrics(summary, self._config)]
        if self._stopped_by is not None and len(rounds) < self._config.rounds:
            summary["stopped_by"] = self._stopped_by
        ended = describe_end(summary, self._config)
        summary["notes"] = [*self._notes(), *ended, *figures, *outcome, *describe_caught(self._caught)]
        if self._folder is not None:
            summary["run_folder"] = str(self._folder.path)
            config = self._config.model_dump(mode="json")
            self._folder.write_json("results.json", {**summary, "config": config})
        return summary

    def _find_computed_by(self) -> dict[str, Any]:
        """What the last rounds were computed by: the run's own results say it where no round was played here."""
        if self._folder is not None and not self._has_played:
            with suppress(RunFolderError):  # damaged results are made anew
                known = (self._folder.read_final(self._config.rounds) or {}).get("computed_by")
                if isinstance(known, dict):
                    return known
        return dict(self._fleet.computed_by)


def _refuse_taken_names(metrics: Sequence[str]) -> None:
    """Metrics stand beside the columns of rounds and servers, so none may be called like one of them."""
    for name in metrics:
        if name in ROUNDS.columns or name in SERVERS.columns:
            raise ConfigError(
                f"Metric {name!r} is called like a column of the records. Register it under another name."
            )


def _restore_beliefs(database: RunDatabase) -> KeptBeliefs:
    """What the records of the rounds so far say; nothing of a new run."""
    last = database.last_verdicts()
    return restore_kept(read_changes(database.records("trust")), None if last is None else last[1])
