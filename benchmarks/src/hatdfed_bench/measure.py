"""Rounds of the loop, the mailboxes and the stacked fleet, timed in turn on one machine in one process.

A machine's speed changes while one looks at it: they take turns, and each turn measures the yardstick anew. The stacked
fleet computes as it would in a run; `lifted` and `looped` are the same fleet, made to compute in that way.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import asdict, dataclass, replace
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hatdfed.core.coordinator import Coordinator, CoordinatorState
from hatdfed.core.fleet import FleetGroup
from hatdfed.data.datasets.base import Dataset
from hatdfed.fleets.stacked.fleet import StackedFleet
from hatdfed.fleets.stacked.lifted import LiftedModel, Lifting
from hatdfed.fleets.stacked.looped import LoopedModel
from hatdfed.fleets.stacked.memory import predicted_bytes
from hatdfed.fleets.stacked.model import StackedModel
from hatdfed.fleets.stacked.precision import torch_products
from hatdfed.fleets.stacked.rows import Execution, RunServers
from hatdfed.fleets.stacked.trial import measure_memory, try_lifting
from hatdfed.server.optimisers import Sgd
from hatdfed.server.tasks import make_task
from hatdfed.setup.build.placement import Placement
from hatdfed.setup.build.program import make_actors
from hatdfed.setup.build.simulation import SimulatedRuns, make_batch
from hatdfed.setup.build.world import make_world
from hatdfed_bench.machine import at_most, forget_peak_memory, gemm_gflops, peak_memory_mb, timed
from hatdfed_bench.plain_loop import PlainLoop
from hatdfed_bench.workload import Workload

_WARM_UP_LOOP = 2  # rounds
_WARM_UP_WAY = {"cpu": 1, "cuda": 3}  # a CUDA graph is captured in the second round
_COMPARED, _COMPARED_ROUNDS, _COMPARED_SAMPLES = 4, 2, 20  # servers, rounds and samples that `measure_deviation` takes
TOPOLOGIES = 4  # that the loop takes turns with

Turn = Callable[[], None]


@dataclass(frozen=True)
class Result:
    """One line of the table."""

    workload: str
    servers: int
    runs: int
    fleet: str  # loop, mailbox, stacked, looped or a way to lift, such as lifted+each+graphs
    device: str
    seconds_per_round: float
    server_rounds_per_second: float
    speedup_over_loop: float | None
    achieved_gflops: float
    share_of_gemm: float
    peak_memory_mb: float
    predicted_memory_mb: float | None  # of a stacked fleet, before it is made; without what else the process holds
    kernels: str | None = None  # of a stacked fleet: how its servers are computed
    note: str | None = None  # what did not go as it was asked for
    because: str | None = None  # why a stacked fleet computes so, as a run says it
    deviation: float | None = None  # of logits from those of a learner that plays one by one, see `measure_deviation`

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
    note: str | None = None
    because: str | None = None
    deviation: float | None = None


def measure(
    workload: Workload, servers: int, device: torch.device, *, fleets: tuple[str, ...], runs: int = 1, turns: int = 3
) -> Iterator[Result]:
    """Seconds a round of each fleet, the median of several turns; a first round warms up and is not counted."""
    dataset = workload.dataset()
    timings = []
    for fleet in fleets:
        count = 1 if fleet in ("loop", "mailbox") else runs
        batch = None if fleet == "loop" else _batch(fleet, workload, servers, dataset, device, count)
        turn = (
            _loop_turn(workload, servers, dataset, device)
            if batch is None
            else _fleet_turn(batch.coordinators, batch.fleets)
        )
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
        note=timing.note,
        because=timing.because,
        deviation=timing.deviation,
    )


def measure_ways(
    workload: Workload, servers: int, device: torch.device, ways: Sequence[str], *, turns: int, seconds: float
) -> Iterator[Result | Exception]:
    """The loop, and each of these ways against it, one after another: a GPU cannot hold all of them at once.

    The loop plays a round next to each round of a way. A way that fails yields its error, and one for which there is no
    time `TimeoutError`. The first way may take all of the time, those after it equal shares of what is left.
    """
    end = time.monotonic() + seconds
    dataset = workload.dataset()
    loop = _Timing("loop", 1, _loop_turn(workload, servers, dataset, device), [], [], None)
    yardstick = gemm_gflops(device)
    for _ in range(_WARM_UP_LOOP):
        timed(loop.turn, device)
    forget_peak_memory(device)
    loop.seconds = [timed(loop.turn, device)]
    loop.memory_mb = peak_memory_mb(device)
    every = list(loop.seconds)
    runs = _prepare_runs(workload, servers, dataset, device, ways)
    for place, way in enumerate(ways):
        left = end - time.monotonic()
        share = left / (len(ways) - place) if place else left
        try:
            with at_most(share):
                timing = _time_way(runs, device, loop, turns, way)
        except Exception as error:  # noqa: BLE001 (the other ways are measured all the same)
            yield _without_traceback(error)
        else:
            timing.shares = [workload.round_flops(servers) / each / 1e9 / yardstick for each in timing.seconds]
            every += loop.seconds
            yield _result(workload, servers, device, timing, loop)
        _forget(device)
    loop.seconds = every
    loop.shares = [workload.round_flops(servers) / each / 1e9 / yardstick for each in every]
    yield _result(workload, servers, device, loop, loop)


class _Runs(NamedTuple):
    """What every way of computing them has in common."""

    coordinators: list[Coordinator]
    members: Sequence[RunServers]
    how: Execution
    mailboxes: FleetGroup | None  # the same runs with one server after another, where that is measured

    def fleet(self, way: str) -> StackedFleet:
        """Make a fleet that computes in this way."""
        model = None if way == "stacked" else _make_model(self.members, way, self.how.device)
        return StackedFleet(self.members, self.how, model)


def _prepare_runs(
    workload: Workload, servers: int, dataset: Dataset, device: torch.device, ways: Sequence[str]
) -> _Runs:
    """The runs without a fleet; models are drawn once for all ways."""
    batch = _batch("stacked", workload, servers, dataset, device, 1)
    assert isinstance(batch.fleets, StackedFleet)
    mailboxes = _batch("mailbox", workload, servers, dataset, device, 1).fleets if "mailbox" in ways else None
    runs = _Runs(batch.coordinators, batch.fleets.rows.members, batch.fleets.rows.how, mailboxes)
    models = batch.fleets.rows.params.cpu()
    drawn = {seed: models[row] for row, seed in enumerate(runs.members[0].initial_seeds)}
    learner = runs.members[0].program.learner
    draw = learner.init
    learner.init = lambda seed: drawn[seed] if seed in drawn else draw(seed)  # type: ignore[method-assign]
    return runs


def _time_way(runs: _Runs, device: torch.device, loop: _Timing, turns: int, way: str) -> _Timing:
    """Rounds of one way and of the loop, in turn."""
    forget_peak_memory(device)
    if way == "mailbox":
        assert runs.mailboxes is not None
        timing = _Timing(way, 1, _fleet_turn(runs.coordinators, runs.mailboxes), [], [], None, "one by one")
        _take_turns(timing, loop, device, turns)
        return timing
    stack = runs.fleet(way)
    predicted = predicted_bytes(stack.rows.members, stack.rows.how) / 1e6
    timing = _Timing(way, 1, _fleet_turn(runs.coordinators, stack), [], [], predicted, stack.rows.model.kernels)
    _take_turns(timing, loop, device, turns)
    model, computed = stack.rows.model, way
    timing.because = model.reason
    if isinstance(model, LiftedModel):
        timing.note, computed = model.graph_failure, model.lifting.name
    elif isinstance(model, LoopedModel):
        computed = "looped"
    del stack, model
    timing.turn = lambda: None  # nothing keeps the fleet
    _forget(device)
    if "compiled" not in way:  # other shapes would be compiled anew
        timing.deviation = measure_deviation(runs, computed)
    return timing


def _take_turns(timing: _Timing, loop: _Timing, device: torch.device, turns: int) -> None:
    """Time rounds of both; the first rounds of the way are not counted."""
    for _ in range(_WARM_UP_WAY[device.type]):
        timed(timing.turn, device)
    timing.memory_mb = peak_memory_mb(device)
    loop.seconds = []
    for _ in range(turns):
        loop.seconds.append(timed(loop.turn, device))
        timing.seconds.append(timed(timing.turn, device))


def measure_deviation(runs: _Runs, way: str) -> float:
    """Train some servers in this way and looped over, in float32, and compare what they answer.

    The largest difference of logits, as a share of the largest logit. The optimiser is SGD: Adam would make steps of
    rounding errors.
    """
    member = runs.members[0]
    learner = copy(member.program.learner)
    learner.optimiser = Sgd(learning_rate=0.01)
    some = slice(0, _COMPARED)
    program = replace(member.program, learner=learner)
    members = [member._replace(program=program, sources=member.sources[some], initial_seeds=member.initial_seeds[some])]
    expected, found = (_answers(runs._replace(members=members).fleet(each)) for each in ("looped", way))
    return float((found - expected).abs().max() / expected.abs().max())


def _answers(fleet: StackedFleet) -> Tensor:  # -> [S, samples, …]
    """Logits of some servers after a few rounds of training without exchange."""
    rows, some = fleet.rows, slice(0, fleet.rows.count)
    sources = rows.members[0].sources
    with torch_products(exact=True):
        for t in range(_COMPARED_ROUNDS):
            plans = [source.plan(t) for source in sources]
            rows.fit(some, plans, np.ones(len(plans)), rows.offsets({0: t})[some])
        return rows.compute_outputs(some, rows.validation.samples(sources[0].validation).x[None, :_COMPARED_SAMPLES])


def _without_traceback(error: Exception) -> Exception:
    """The error alone: its traceback would keep the tensors of what failed."""
    return error.with_traceback(None)


def _forget(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def one_turn(workload: Workload, servers: int, device: torch.device, runs: int) -> Turn:
    """What plays one more round of the stacked fleet each time it is called."""
    batch = _batch("stacked", workload, servers, workload.dataset(), device, runs)
    return _fleet_turn(batch.coordinators, batch.fleets)


def _batch(
    fleet: str, workload: Workload, servers: int, dataset: Dataset, device: torch.device, runs: int
) -> SimulatedRuns:
    configs = [workload.config(servers, rounds=10_000, seed=seed) for seed in range(runs)]
    placement = Placement("mailbox", "cpu") if fleet == "mailbox" else Placement("stacked", device.type)
    batch = make_batch(configs, dataset, placement, names=[str(config.seed) for config in configs])
    if fleet in ("mailbox", "stacked"):
        return batch
    assert isinstance(batch.fleets, StackedFleet)
    members, how = batch.fleets.rows.members, batch.fleets.rows.how
    return batch._replace(fleets=StackedFleet(members, how, _make_model(members, fleet, device)))


def _make_model(members: Sequence[RunServers], way: str, device: torch.device) -> StackedModel:
    """Looped over or lifted in some way, whichever would have been chosen."""
    learner, pool = members[0].program.learner, members[0].sources[0].pool
    memory = measure_memory(learner, pool, device)
    if way == "looped":
        return LoopedModel(learner, device, memory.sample, "it was asked for", channels_last=memory.channels_last)
    lifting = read_lifting(way)
    trial = try_lifting(learner, pool, device)
    if not trial.lifts:
        raise RuntimeError(trial.reason)
    return LiftedModel(learner, device, memory.sample, trial.reason, pads=trial.pads, lifting=lifting)


def read_lifting(way: str) -> Lifting:
    """What a way to lift means: `lifted`, and after it any of the words below, all with a plus sign between them."""
    lifting = Lifting()
    name, *words = way.split("+")
    for word in words:
        if name != "lifted" or word not in _LIFTINGS:
            raise ValueError(
                f"there is no way {way!r}; known are loop, stacked, looped, lifted and +{', +'.join(_LIFTINGS)}"
            )
        lifting = lifting._replace(**_LIFTINGS[word])
    return lifting


_LIFTINGS: dict[str, dict[str, Any]] = {
    "unfolded": {"convolutions": "unfolded"},
    "each": {"convolutions": "each"},
    "channels_last": {"convolutions": "channels_last"},
    "graphs": {"graphs": True},
    "compiled": {"compiled": True},
    "tuned": {"tuned": True},
}


def _fleet_turn(coordinators: Sequence[Coordinator], fleets: FleetGroup) -> Turn:
    """A whole round: plan, fleet, learn."""
    states: list[CoordinatorState] = [
        coordinator.start(np.zeros(fleet.num_servers))
        for coordinator, fleet in zip(coordinators, fleets.fleets, strict=True)
    ]

    def turn() -> None:
        plans = {run: coordinator.plan(states[run]) for run, coordinator in enumerate(coordinators)}
        for run, report in fleets.run_rounds(plans).items():
            states[run], _ = coordinators[run].learn(states[run], plans[run], report)

    return turn


def _loop_turn(workload: Workload, servers: int, dataset: Dataset, device: torch.device) -> Turn:
    """The loop pays for no coordinator: it gets its links for nothing."""
    config = workload.config(servers, rounds=10_000)
    coordinator, _ = make_actors(config, dataset)
    state = coordinator.start(np.zeros(servers))
    world = make_world(config, dataset)
    with device:
        modules = [workload.make_module() for _ in range(servers)]
    loop, rounds = PlainLoop(modules, world.sources, device, make_task(dataset.task)), count()
    topologies = [coordinator.plan(state._replace(t=t)).draw.topology for t in range(TOPOLOGIES)]

    def turn() -> None:
        t = next(rounds)
        loop.run_round(t, topologies[t % TOPOLOGIES])

    return turn
