"""The main loop (Algorithm 1). It does not print, plot or save: sinks do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from hatdfed.core.coordinator import Coordinator, CoordinatorState
from hatdfed.core.fleet import Fleet
from hatdfed.core.round import RoundPlan, RoundRecord, RoundReport

Sink = Callable[[CoordinatorState, RoundRecord], None]


class Plans(Protocol):
    """What the loop asks of a coordinator; one that can be killed wraps `Coordinator` and has the same verbs."""

    def start(self, accuracy: NDArray[np.float64]) -> CoordinatorState:
        """The state before round 0."""

    def plan(self, state: CoordinatorState) -> RoundPlan:
        """Draw a round's links."""

    def learn(
        self, state: CoordinatorState, plan: RoundPlan, report: RoundReport
    ) -> tuple[CoordinatorState, RoundRecord]:
        """What the round taught."""


def run(
    coordinator: Plans,
    fleet: Fleet,
    *,
    rounds: int,
    sinks: Iterable[Sink] = (),
    state: CoordinatorState | None = None,
) -> CoordinatorState:
    """Play until `rounds` rounds have been played; give `state` and a restored fleet to resume."""
    if state is None:
        state = coordinator.start(fleet.validation_accuracy())
    while state.t < rounds:
        plan = coordinator.plan(state)  # phase I: draw this round's links
        report = fleet.run_round(plan)  # phase II: train, exchange, merge, measure
        state, record = coordinator.learn(state, plan, report)  # utility, estimate, weights
        for sink in sinks:
            sink(state, record)
    return state


class RunInPlay(NamedTuple):
    """One of several runs that are played together."""

    coordinator: Coordinator
    rounds: int
    sinks: Sequence[Sink]
    state: CoordinatorState


class ManyRuns(Protocol):
    """A fleet of several runs, numbered as the players are."""

    def run_rounds(self, plans: Mapping[int, RoundPlan]) -> Mapping[int, RoundReport]:
        """One round of the runs that have a plan."""


def run_many(players: Sequence[RunInPlay], fleet: ManyRuns) -> list[CoordinatorState]:
    """The same for several runs side by side; a run that has played its rounds drops out."""
    states = [player.state for player in players]
    while plans := {
        run: player.coordinator.plan(states[run]) for run, player in enumerate(players) if states[run].t < player.rounds
    }:
        for run, report in fleet.run_rounds(plans).items():
            states[run], record = players[run].coordinator.learn(states[run], plans[run], report)
            for sink in players[run].sinks:
                sink(states[run], record)
    return states
