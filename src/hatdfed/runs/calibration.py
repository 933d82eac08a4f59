"""What this machine takes for the work of an edge server: seconds and joules, repeated, with their intervals.

Work is done again and again in windows of a few seconds, each measured by itself. The first window warms up and does
not count. A meter is not needed for seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from hatdfed.data.datasets.base import Dataset
from hatdfed.data.standardise import make_tensors
from hatdfed.errors import EnergyMeterError
from hatdfed.meters.base import Meter, Reading, metered
from hatdfed.runs.records.folder import environment
from hatdfed.runs.statistics import PairedDifference, paired_difference
from hatdfed.server.program import EdgeProgram
from hatdfed.server.work import Batch
from hatdfed.setup.build.program import make_program
from hatdfed.setup.config import Config
from hatdfed.setup.machine_profiles import Figure, MachineProfile

Work = Callable[[], int]  # does some work and returns how many units that was
_ASSUMED = "Not measured: the default of `hatdfed calibrate`."
_RATE, _LATENCY = 100.0, 0.005  # Mbit/s and seconds
_RECEIVED = 2  # models in the merge that is measured, besides the own one


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


class Calibration(NamedTuple):
    """What the machine takes for each kind of work."""

    training: Cost  # of one sample and pass
    probe: Cost  # to evaluate one model on the probe
    merge: Cost  # to merge one received model
    idle: Reading | None


def measure_cost(work: Work, meter: Meter | None, *, repeats: int, seconds: float) -> Cost:
    """Do the work in `repeats` windows of at least so many seconds each, after one that does not count."""
    _work_for(work, min(1.0, seconds))
    windows = tuple(_measure_window(work, meter, seconds) for _ in range(repeats))
    joules = [each.reading.joules / each.units for each in windows if each.reading is not None]
    return Cost(
        _find_interval([each.seconds / each.units for each in windows]),
        _find_interval(joules) if joules else None,
        windows,
    )


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
    device: str = "cpu",
) -> Calibration:
    """Measure training, evaluation and merging with the network and the batches of `config`."""
    works = Works(config, dataset, make_program(config, dataset), device)
    training, probe, merge = (
        measure_cost(work, meter, repeats=repeats, seconds=seconds) for work in (works.train, works.probe, works.merge)
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


class Works:
    """The three kinds of work, with a model that goes on learning."""

    def __init__(self, config: Config, dataset: Dataset, program: EdgeProgram, device: str) -> None:
        self._learner, self._device = program.learner.on_device(torch.device(device)), device
        self._batches = _go_round(_make_batches(dataset, config.batch_size, device))
        self._probe = make_tensors(dataset.validation.take(slice(0, config.probe_size)), dataset.format).x.to(device)
        server = program.start(0)
        self._params = server.params.to(device)
        self._optimiser = server.optimiser._replace(
            first=server.optimiser.first.to(device), second=server.optimiser.second.to(device)
        )
        self._weights = torch.full((1 + _RECEIVED,), 1 / (1 + _RECEIVED), device=device)

    def train(self) -> int:
        """One step; the unit is a sample and pass."""
        batch = next(self._batches)
        self._params, self._optimiser = self._learner.fit(self._params, self._optimiser, [batch], seed=0, spend=True)
        self._finish()
        return len(batch.x)

    def probe(self) -> int:
        """Evaluate one model on the probe."""
        self._learner.logits(self._params, self._probe)
        self._finish()
        return 1

    def merge(self) -> int:
        """A weighted sum; the unit is one received model."""
        models = self._params.expand(1 + _RECEIVED, -1)
        torch.mv(models.T.contiguous(), self._weights)
        self._finish()
        return _RECEIVED

    def _finish(self) -> None:
        if self._device != "cpu":
            torch.cuda.synchronize(self._device)


def _make_batches(dataset: Dataset, size: int, device: str) -> list[Batch]:
    count = min(len(dataset.train.y), 16 * size)
    tensors = make_tensors(dataset.train.take(slice(0, count)), dataset.format)
    parts = [Batch(*(_cut(each, start, size).to(device) for each in tensors)) for start in range(0, count, size)]
    whole = [part for part in parts if len(part.x) == min(size, count)]
    if not whole:
        raise EnergyMeterError("The data set has no training sample, so nothing can be measured.")
    return whole


def _cut(tensor: Tensor, start: int, size: int) -> Tensor:
    return tensor[start : start + size]


def _go_round(batches: Sequence[Batch]) -> Iterator[Batch]:
    while True:
        yield from batches
