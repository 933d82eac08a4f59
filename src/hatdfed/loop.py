"""The main loop (Algorithm 1). It does not print, plot or save: sinks do."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from hatdfed.coordinator import Coordinator, CoordinatorState
from hatdfed.fleets.base import Fleet
from hatdfed.round import RoundRecord

Sink = Callable[[CoordinatorState, RoundRecord], None]


def run(
    coordinator: Coordinator,
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
