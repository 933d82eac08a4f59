"""One run while it is being played: its records, its checkpoints, and its results at the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hatdfed.core.coordinator import CoordinatorState
from hatdfed.core.loop import RunInPlay
from hatdfed.core.round import RoundRecord
from hatdfed.errors import RunFolderError
from hatdfed.runs.records.checkpoint import read_checkpoint, write_checkpoint
from hatdfed.runs.records.database import MATRIX_LIMIT, Records, RunDatabase
from hatdfed.runs.records.folder import RunFolder
from hatdfed.runs.records.tables import records_of
from hatdfed.runs.summary import outcome_notes, personal_accuracy, summarise
from hatdfed.setup.build.placement import Placement
from hatdfed.setup.build.simulation import Simulation
from hatdfed.setup.config import Config
from hatdfed.setup.layers import collect_notes, considered_links
from hatdfed.setup.run_identity import resume_digest

OnRound = Callable[[Config, RoundRecord], None]


@dataclass(frozen=True)
class RunResult:
    """What a run brought; lists of plain records that a data frame takes as they are."""

    config: Config
    summary: dict[str, Any]
    rounds: Records
    servers: Sequence[dict[str, Any]]
    links: Sequence[dict[str, Any]]
    ledger: Sequence[dict[str, Any]]
    link_joules: (
        NDArray[np.float64] | None
    )  # [N, N] price of a whole model on every link; None where few are considered
    propensity: NDArray[np.float64] | None  # [N, N] probability of every link in the last round; None of large fleets
    folder: Path | None


class Session:
    """Keeps what a run brings; use `close` whatever happens."""

    def __init__(
        self,
        config: Config,
        simulation: Simulation,
        placement: Placement,
        folder: RunFolder | None,
        *,
        resumed: bool = False,
        on_round: OnRound | None = None,
    ) -> None:
        self._config = config
        self._simulation = simulation
        self._placement = placement
        self._folder = folder
        self._on_round = on_round
        self._digest = resume_digest(config)
        self._result: RunResult | None = None
        self._state = self._restored() if resumed else None
        self._database = RunDatabase(None if folder is None else folder.database)
        try:
            self._forget_what_comes_again()
            if resumed and folder is not None:
                folder.write_config(config)  # only now: what cannot go on keeps the settings that it was played with
        except BaseException:
            self.close()
            raise
        self._last_round_at = time.perf_counter()

    def player(self) -> RunInPlay:
        """For the main loop."""
        state = self._state
        if state is None:
            state = self._simulation.coordinator.start(self._first_accuracy())
            if self._folder is not None and self._config.checkpoint_every:
                self._write_checkpoint(state)  # a run that is killed early can go on, too
        self._last_round_at = time.perf_counter()
        sinks = (self._keep, self._checkpoint, self._watch, self._end)
        return RunInPlay(self._simulation.coordinator, self._config.rounds, sinks, state)

    def result(self) -> RunResult:
        """What the run brought, once it has played its rounds."""
        if self._result is None:
            self._result = self._finish()
        return self._result

    def _end(self, state: CoordinatorState, record: RoundRecord) -> None:
        """A run that is done is finished at once: others in its batch may go on for long, or be stopped."""
        if state.t >= self._config.rounds:
            self.result()

    def _finish(self) -> RunResult:
        """Read the test set, once, and write the results."""
        self._database.flush()
        simulation, config, folder = self._simulation, self._config, self._folder
        rounds = self._database.records("rounds")
        correct = simulation.fleet.correct(simulation.test)
        personal = personal_accuracy(correct, simulation.test.y.numpy(), simulation.label_shares)
        summary = summarise(config, correct.mean(axis=1), personal, rounds)
        summary["computed_by"] = {**self._placement.described, "kernels": simulation.fleet.kernels}
        summary["notes"] = [*collect_notes(config), *outcome_notes(config, rounds)]
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
            servers=self._records("servers"),
            links=self._records("links"),
            ledger=self._records("ledger"),
            link_joules=self._link_joules(),
            propensity=self._database.last_propensity(),
            folder=None if folder is None else folder.path,
        )

    def _records(self, table: str) -> Sequence[dict[str, Any]]:
        return records_of(self._database, self._folder, table, self._config.servers)

    def _link_joules(self) -> NDArray[np.float64] | None:
        is_sparse = considered_links(self._config) is not None and self._config.servers > MATRIX_LIMIT
        return None if is_sparse else self._simulation.coordinator.prices.link_joules

    def close(self) -> None:
        """Release the records."""
        self._database.close()

    def _restored(self) -> CoordinatorState:
        if self._folder is None:
            raise ValueError("only a run in a folder can be resumed")
        state, snapshot = read_checkpoint(self._folder.checkpoint, self._digest, self._simulation.coordinator)
        if type(state.t) is not int or not 0 <= state.t <= self._config.rounds:
            raise RunFolderError(
                f"The checkpoint {self._folder.checkpoint} stands at round {state.t!r:.40}, but the run has rounds "
                f"0 to {self._config.rounds}. Put back the file that belongs there, or start the run again."
            )
        self._simulation.fleet.restore(snapshot)
        return state

    def _forget_what_comes_again(self) -> None:
        t = 0 if self._state is None else self._state.t
        self._database.forget_from(t)
        if t and [row["t"] for row in self._database.records("rounds")] != list(range(t)):
            raise RunFolderError(
                f"The checkpoint stands at round {t}, but not all rounds before it are in {self._database.path}. "
                "Records were lost, so the run cannot go on; start it again."
            )

    def _first_accuracy(self) -> NDArray[np.float64]:
        """P_0: measured once, or zero as released (D13, D8)."""
        if self._config.first_gain_from == "zero":
            return np.zeros(self._config.servers)
        return self._simulation.fleet.validation_accuracy()

    def _keep(self, state: CoordinatorState, record: RoundRecord) -> None:
        now = time.perf_counter()
        self._database.write(record, now - self._last_round_at)
        self._last_round_at = now

    def _checkpoint(self, state: CoordinatorState, record: RoundRecord) -> None:
        every = self._config.checkpoint_every
        if self._folder is not None and every and (state.t % every == 0 or state.t == self._config.rounds):
            self._write_checkpoint(state)

    def _write_checkpoint(self, state: CoordinatorState) -> None:
        if self._folder is not None:
            self._database.flush()  # records may be ahead of a checkpoint, never behind it
            write_checkpoint(self._folder.checkpoint, self._digest, state, self._simulation.fleet.snapshot())

    def _watch(self, state: CoordinatorState, record: RoundRecord) -> None:
        if self._on_round is not None:
            self._on_round(self._config, record)
