"""What this machine takes for the work of an edge server: seconds and joules, repeated, with their intervals.

Work is done again and again in windows of a few seconds, each measured by itself, until the means are known well enough
or the time is over. The first window warms up and does not count. A meter is not needed for seconds.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from typing import Any, NamedTuple

import torch

from hatdfed.data.datasets.base import Dataset
from hatdfed.data.standardise import make_tensors
from hatdfed.errors import EnergyMeterError
from hatdfed.meters.base import Meter, Reading, metered
from hatdfed.randomness import stream
from hatdfed.runs.records.folder import environment
from hatdfed.runs.statistics import PairedDifference, paired_difference
from hatdfed.server.program import EdgeProgram
from hatdfed.server.work import Batch, LazyBatches
from hatdfed.server.work import Work as RoundWork
from hatdfed.setup.build.program import make_program
from hatdfed.setup.config import Config
from hatdfed.setup.machine_profiles import Figure, MachineProfile

Work = Callable[[], int]  # does some work and returns how many units that was
_ASSUMED = "Not measured: the default of `hatdfed calibrate`."
_RATE, _LATENCY = 100.0, 0.005  # Mbit/s and seconds
_RECEIVED = 2  # models in the merge that is measured, besides the own one
POOL = 8192  # samples that rounds draw from
PRECISION = 0.03  # of means, at which nothing more is measured


class MeasuredWindow(NamedTuple):
    """One window of work."""

    units: int
    seconds: float
    reading: Reading | None  # None without a meter


class Cost(NamedTuple):
    """What one unit of work takes: means over windows, with their 95 % intervals."""

    seconds: PairedDifference
    joules: PairedDifference | None
    windows: tuple[MeasuredWindow, ...]

    @property
    def uncertainty(self) -> float:
        """Of the mean seconds or joules, whichever is larger: as a share of the mean."""
        return _find_uncertainty(self.windows)


class Calibration(NamedTuple):
    """What the machine takes for each kind of work."""

    training: Cost  # of one sample and pass
    probe: Cost  # to evaluate one model on the probe
    merge: Cost  # to merge one received model
    idle: Reading | None


def measure_cost(work: Work, meter: Meter | None, *, repeats: int, seconds: float, limit: float = 0.0) -> Cost:
    """Do the work in windows of at least so many seconds each, after one that does not count.

    There are `repeats` windows, and more until the uncertainty of the means is at most `PRECISION`, as long as another
    window would be over `limit` seconds after the first began.
    """
    _work_for(work, seconds)
    began, windows = time.perf_counter(), list[MeasuredWindow]()
    while len(windows) < repeats or (
        _find_uncertainty(windows) > PRECISION and time.perf_counter() - began + seconds <= limit
    ):
        windows.append(_measure_window(work, meter, seconds))
    joules = [each.reading.joules / each.units for each in windows if each.reading is not None]
    return Cost(
        _find_interval([each.seconds / each.units for each in windows]),
        _find_interval(joules) if joules else None,
        tuple(windows),
    )


def _find_uncertainty(windows: Sequence[MeasuredWindow]) -> float:
    """The standard error of the mean seconds or joules, with what the meter did not see: as a share of the mean."""
    seconds = _find_standard_error([each.seconds / each.units for each in windows])
    readings = [(each.reading, each.units) for each in windows if each.reading is not None and each.reading.is_measured]
    if not readings:
        return seconds
    joules = [reading.joules / units for reading, units in readings]
    unseen = math.hypot(*(reading.uncertainty / units for reading, units in readings))
    total = math.fsum(joules)
    return max(seconds, math.hypot(_find_standard_error(joules), unseen / total if total else math.inf))


def _find_standard_error(values: Sequence[float]) -> float:
    """Of the mean, as a share of it; infinite where one value shows no spread."""
    n, mean = len(values), math.fsum(values) / len(values)
    if n < 2 or not mean:
        return math.inf
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n * (n - 1))) / mean


def _measure_window(work: Work, meter: Meter | None, seconds: float) -> MeasuredWindow:
    if meter is None:
        return MeasuredWindow(*_work_for(work, seconds), None)
    with metered(meter) as readings:
        units, took = _work_for(work, seconds)
    return MeasuredWindow(units, took, readings[0])


def _work_for(work: Work, seconds: float) -> tuple[int, float]:
    """Work until so many seconds have passed; returns how much was done, and in what time."""
    began, units = time.perf_counter(), 0
    while (passed := time.perf_counter() - began) < seconds or not units:
        units += work()
    return units, passed if units and passed > 0 else time.perf_counter() - began


def _find_interval(values: Sequence[float]) -> PairedDifference:
    return paired_difference(dict(enumerate(values)), dict.fromkeys(range(len(values)), 0.0))


def calibrate(
    config: Config,
    dataset: Dataset,
    meter: Meter | None,
    idle: Reading | None,
    *,
    repeats: int,
    seconds: float,
    limit: float = 0.0,
    device: str = "cpu",
) -> Calibration:
    """Measure training, evaluation and merging with the network and the rounds of `config`."""
    works = Works(config, dataset, make_program(config, dataset), device)
    training, probe, merge = (
        measure_cost(work, meter, repeats=repeats, seconds=seconds, limit=limit)
        for work in (works.train, works.probe, works.merge)
    )
    return Calibration(training, probe, merge, idle)


def make_profile(
    name: str,
    about: str,
    training: Cost,
    idle: Reading | None,
    *,
    watts: float | None = None,
    idle_watts: float | None = None,
    rate: float | None = None,
) -> MachineProfile:
    """The profile of this machine; `watts` and `idle_watts` are what the user says where nothing was measured."""
    here = environment()
    seconds, joules = training.seconds.mean, training.joules
    source = f"hatdfed calibrate, {time.strftime('%Y-%m-%d')}, {about}"
    if joules is None or idle is None or not idle.is_measured:
        while_training = Figure(value=watts or 0.0, how="not stated", source="Named by the user.")
        while_idle = Figure(value=idle_watts or watts or 0.0, how="not stated", source="Named by the user.")
    else:
        meter = f"{source}; {idle.source} ({', '.join(idle.domains)}), less idle power"
        while_training = Figure(value=max(joules.mean / seconds, 1e-9), how="measured", source=meter)
        while_idle = Figure(value=max(idle.gross_watts, 1e-9), how="measured", source=f"{source}; {idle.source}")
    uplink = Figure(value=_RATE, source=_ASSUMED) if rate is None else Figure(value=rate, how="measured", source=source)
    return MachineProfile(
        name=name,
        machine=f"{here['processor']}, {here['cores']} cores",
        idle_watts=while_idle,
        training_watts=while_training,
        sample_seconds=Figure(value=seconds, how="measured", source=source),
        upload_mbit_per_second=Figure(value=_RATE, source=_ASSUMED),
        uplink_mbit_per_second=uplink,
        latency_seconds=Figure(value=_LATENCY, source=_ASSUMED),
    )


class TrainingRounds:
    """An edge's training, round after round: samples of a pool in batches, in several passes, as in a run."""

    def __init__(
        self, config: Config, dataset: Dataset, program: EdgeProgram, device: torch.device, *, seed: int = 0
    ) -> None:
        """`seed` is for the first model and for what is drawn from the training samples of the data set."""
        if not len(dataset.train.y):
            raise EnergyMeterError("The data set has no training sample, so nothing can be measured.")
        self._config, self._device = config, device
        self._program = replace(program, learner=program.learner.on_device(device))
        server = self._program.start(seed)
        moments = [each.to(device) for each in server.optimiser[1:]]
        optimiser = server.optimiser._replace(first=moments[0], second=moments[1])
        self._server = server._replace(params=server.params.to(device), optimiser=optimiser)
        self._pool = Batch(*(each.to(device) for each in make_tensors(dataset.train.take(slice(POOL)), dataset.format)))
        self._rng, self._rounds = stream(seed, "calibration", config.batch_size), count()

    def play(self, samples: int) -> int:
        """Train in one round on so many samples, or all there are; returns the samples, each times its passes."""
        t, size, samples = next(self._rounds), self._config.batch_size, min(samples, len(self._pool.y))
        own = self._rng.choice(len(self._pool.y), samples, replace=False)
        passes = [self._rng.permutation(own) for _ in range(self._config.local_passes)]
        chosen = [part[start : start + size] for part in passes for start in range(0, samples, size)]
        nothing = Batch(*(each[:0] for each in self._pool))
        work = RoundWork(LazyBatches(self._take, chosen), samples, 1, nothing, nothing, seed=t)
        self._server = self._program.train(self._server, work, t, spend=True)
        _finish(self._device)
        return samples * self._config.local_passes

    def _take(self, chosen: Any) -> Batch:
        places = torch.from_numpy(chosen).to(self._device)
        return Batch(*(each[places] for each in self._pool))


class Works:
    """The three kinds of work."""

    def __init__(self, config: Config, dataset: Dataset, program: EdgeProgram, device: str) -> None:
        self._device, self._samples = torch.device(device), config.samples_per_round
        self._rounds = TrainingRounds(config, dataset, program, self._device)
        self._learner = program.learner.on_device(self._device)
        self._probe = make_tensors(dataset.validation.take(slice(0, config.probe_size)), dataset.format).x.to(device)
        self._params = program.start(0).params.to(device)
        self._weights = torch.full((1 + _RECEIVED,), 1 / (1 + _RECEIVED), device=device)

    def train(self) -> int:
        """One round; the unit is a sample and pass."""
        return self._rounds.play(self._samples)

    def probe(self) -> int:
        """Evaluate one model on the probe."""
        self._learner.logits(self._params, self._probe)
        _finish(self._device)
        return 1

    def merge(self) -> int:
        """A weighted sum; the unit is one received model."""
        models = self._params.expand(1 + _RECEIVED, -1)
        torch.mv(models.T.contiguous(), self._weights)
        _finish(self._device)
        return _RECEIVED


def _finish(device: torch.device) -> None:
    if device.type != "cpu":
        torch.cuda.synchronize(device)
