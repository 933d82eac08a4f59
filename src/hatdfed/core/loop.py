"""The main loop (Algorithm 1): every simulation, comparison, sweep and deployment executes `run`.

It does not print, plot or save: sinks do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from hatdfed.core.coordinator import CoordinatorState
from hatdfed.core.fleet import FleetGroup
from hatdfed.core.round import RoundPlan, RoundRecord, RoundReport

Sink = Callable[[CoordinatorState, RoundRecord], None]


class Plans(Protocol):
    """What is asked of a coordinator; one that can be killed wraps `Coordinator` and has the same verbs."""

    def start(self, accuracy: NDArray[np.float64]) -> CoordinatorState:
        """The state before round 0."""

    def plan(self, state: CoordinatorState) -> RoundPlan:
        """Draw a round's links."""

    def learn(
        self, state: CoordinatorState, plan: RoundPlan, report: RoundReport
    ) -> tuple[CoordinatorState, RoundRecord]:
        """What the round taught."""


class RunInPlay(NamedTuple):
    """One run: who plans it, where it stands, how far it goes, who is told of its rounds."""

    coordinator: Plans
    state: CoordinatorState  # of `coordinator.start`, or one to go on from
    rounds: int
    sinks: Sequence[Sink] = ()


def run(runs: Sequence[RunInPlay], fleets: FleetGroup) -> list[CoordinatorState]:
    """Play runs side by side until each has played its rounds; give a state and a restored fleet to resume."""
    states = [each.state for each in runs]
    while plans := {  # phase I: draw this round's links
        n: each.coordinator.plan(states[n]) for n, each in enumerate(runs) if states[n].t < each.rounds
    }:
        reports = fleets.run_rounds(plans)  # phase II: train, exchange, merge, measure
        for n, report in reports.items():
            states[n], record = runs[n].coordinator.learn(states[n], plans[n], report)  # utility, estimate, weights
            for sink in runs[n].sinks:
                sink(states[n], record)
    return states
