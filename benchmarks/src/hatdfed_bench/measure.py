"""Rounds of the loop, the mailboxes and the stacked fleet, timed in turn on one machine in one process.

A machine's speed changes while one looks at it: they take turns, and each turn measures the yardstick anew. The stacked
fleet computes as it would in a run; `lifted` and `looped` are the same fleet, made to compute in that way.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import count
from typing import Any

import numpy as np
import torch

from hatdfed.core.coordinator import CoordinatorState
from hatdfed.data.datasets.base import Dataset
from hatdfed.fleets.stacked.fleet import StackedFleet
from hatdfed.fleets.stacked.lifted import LiftedModel
from hatdfed.fleets.stacked.looped import LoopedModel
from hatdfed.fleets.stacked.memory import predicted_bytes
from hatdfed.fleets.stacked.trial import measure_memory, try_lifting
from hatdfed.server.tasks import make_task
from hatdfed.setup.build.placement import Placement
from hatdfed.setup.build.program import make_actors
from hatdfed.setup.build.simulation import SimulatedRuns, make_batch
from hatdfed.setup.build.world import make_world
from hatdfed_bench.machine import forget_peak_memory, gemm_gflops, peak_memory_mb, timed
from hatdfed_bench.plain_loop import PlainLoop
from hatdfed_bench.workload import Workload

TOPOLOGIES = 4  # that the loop takes turns with

Turn = Callable[[], None]


@dataclass(frozen=True)
class Result:
    """One line of the table."""

    workload: str
    servers: int
    runs: int
    fleet: str  # loop, mailbox, stacked, lifted or looped
    device: str
    seconds_per_round: float
    server_rounds_per_second: float
    speedup_over_loop: float | None
    achieved_gflops: float
    share_of_gemm: float
    peak_memory_mb: float
    predicted_memory_mb: float | None  # of a stacked fleet, before it is made; without what else the process holds
    kernels: str | None = None  # of a stacked fleet: how its servers are computed

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return asdict(self)


@dataclass
class _Timing:
    fleet: str
    runs: int
    turn: Turn
    seconds: list[float]
    shares: list[float]  # of the yardstick measured next to it
    predicted_mb: float | None
    kernels: str | None = None
    memory_mb: float = 0.0


def measure(
    workload: Workload, servers: int, device: torch.device, *, fleets: tuple[str, ...], runs: int = 1, turns: int = 3
) -> Iterator[Result]:
    """Seconds a round of each fleet, the median of several turns; a first round warms up and is not counted."""
    dataset = workload.dataset()
    timings = []
    for fleet in fleets:
        count = 1 if fleet in ("loop", "mailbox") else runs
        batch = None if fleet == "loop" else _batch(fleet, workload, servers, dataset, device, count)
        turn = _loop_turn(workload, servers, dataset, device) if batch is None else _fleet_turn(batch)
        predicted, kernels = None, None
        if batch is not None and isinstance(batch.fleets, StackedFleet):
            predicted = predicted_bytes(batch.fleets.rows.members, batch.fleets.rows.how) / 1e6
            kernels = batch.fleets.rows.model.kernels
        timings.append(_Timing(fleet, count, turn, [], [], predicted, kernels))
    for timing in timings:
        forget_peak_memory(device)
        timed(timing.turn, device)
        timing.memory_mb = peak_memory_mb(device)
    for _ in range(turns):
        yardstick = gemm_gflops(device)
        for timing in timings:
            seconds = timed(timing.turn, device)
            timing.seconds.append(seconds)
            timing.shares.append(timing.runs * workload.round_flops(servers) / seconds / 1e9 / yardstick)
    loop = next((timing for timing in timings if timing.fleet == "loop"), None)
    for timing in timings:
        yield _result(workload, servers, device, timing, loop)


def _result(workload: Workload, servers: int, device: torch.device, timing: _Timing, loop: _Timing | None) -> Result:
    seconds = statistics.median(timing.seconds)
    ratios = None if loop is None else [a * timing.runs / b for a, b in zip(loop.seconds, timing.seconds, strict=True)]
    return Result(
        workload=workload.name,
        servers=servers,
        runs=timing.runs,
        fleet=timing.fleet,
        device=device.type,
        seconds_per_round=seconds,
        server_rounds_per_second=timing.runs * servers / seconds,
        speedup_over_loop=None if ratios is None else statistics.median(ratios),
        achieved_gflops=timing.runs * workload.round_flops(servers) / seconds / 1e9,
        share_of_gemm=statistics.median(timing.shares),
        peak_memory_mb=timing.memory_mb,
        predicted_memory_mb=timing.predicted_mb,
        kernels=timing.kernels,
    )


def one_turn(workload: Workload, servers: int, device: torch.device, runs: int) -> Turn:
    """What plays one more round of the stacked fleet each time it is called."""
    return _fleet_turn(_batch("stacked", workload, servers, workload.dataset(), device, runs))


def _batch(
    fleet: str, workload: Workload, servers: int, dataset: Dataset, device: torch.device, runs: int
) -> SimulatedRuns:
    configs = [workload.config(servers, rounds=10_000, seed=seed) for seed in range(runs)]
    placement = Placement("mailbox", "cpu") if fleet == "mailbox" else Placement("stacked", device.type)
    batch = make_batch(configs, dataset, placement, names=[str(config.seed) for config in configs])
    return batch if fleet in ("mailbox", "stacked") else _forced(batch, fleet, device)


def _forced(batch: SimulatedRuns, form: str, device: torch.device) -> SimulatedRuns:
    """The same runs, lifted or looped over, whichever would have been chosen."""
    stack = batch.fleets
    assert isinstance(stack, StackedFleet)
    members, how = stack.rows.members, stack.rows.how
    learner, pool = members[0].program.learner, members[0].sources[0].pool
    memory = measure_memory(learner, pool, device)
    model = LoopedModel(learner, device, memory.sample, "it was asked for", channels_last=memory.channels_last)
    if form == "lifted":
        trial = try_lifting(learner, pool, device)
        model = LiftedModel(learner, device, memory.sample, trial.reason, pads=trial.pads)
    return batch._replace(fleets=StackedFleet(members, how, model))


def _fleet_turn(batch: SimulatedRuns) -> Turn:
    """A whole round: plan, fleet, learn."""
    coordinators = batch.coordinators
    states: list[CoordinatorState] = [
        coordinator.start(np.zeros(fleet.num_servers))
        for coordinator, fleet in zip(coordinators, batch.fleets.fleets, strict=True)
    ]

    def turn() -> None:
        plans = {run: coordinator.plan(states[run]) for run, coordinator in enumerate(coordinators)}
        for run, report in batch.fleets.run_rounds(plans).items():
            states[run], _ = coordinators[run].learn(states[run], plans[run], report)

    return turn


def _loop_turn(workload: Workload, servers: int, dataset: Dataset, device: torch.device) -> Turn:
    """The loop pays for no coordinator: it gets its links for nothing."""
    config = workload.config(servers, rounds=10_000)
    coordinator, _ = make_actors(config, dataset)
    state = coordinator.start(np.zeros(servers))
    world = make_world(config, dataset)
    modules = [workload.make_module() for _ in range(servers)]
    loop, rounds = PlainLoop(modules, world.sources, device, make_task(dataset.task)), count()
    topologies = [coordinator.plan(state._replace(t=t)).draw.topology for t in range(TOPOLOGIES)]

    def turn() -> None:
        t = next(rounds)
        loop.run_round(t, topologies[t % TOPOLOGIES])

    return turn
