"""Time a step of training and an evaluation of several servers, in some form of their network."""

from __future__ import annotations

import copy
import gc
import time
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hatdfed.fleets.stacked.lifted import LiftedModel, Lifting
from hatdfed.fleets.stacked.looped import LoopedModel
from hatdfed.fleets.stacked.model import BytesPerSample, ModelRows, Samples
from hatdfed.fleets.stacked.precision import torch_products
from hatdfed.fleets.stacked.timed_choice import Timing
from hatdfed.server.learner import Learner
from hatdfed.server.work import Batch, WorkPlan

_MOST_SERVERS = 64
_USED_SHARE = 0.4  # of the free memory
_ROWS = 8  # of a server, at most: parameters, gradients, moments, and copies of them
_TURNS, _TURN_SECONDS = 3, 0.3  # the shortest turn counts; there are fewer if they take longer
_ASKED = 100  # samples of an evaluation
_SEED = 20
_FLOAT = 4  # bytes


class Load(NamedTuple):
    """How many servers a fleet has, and how many samples a batch."""

    servers: int = 16
    batch: int = 32


class StepTimer:
    """Plays steps of one network; models and moments are blank tensors of its own."""

    def __init__(
        self,
        learner: Learner,
        pool: Batch,
        device: torch.device,
        load: Load,
        sample: BytesPerSample,
        *,
        pads: bool,
        channels_last: bool,
    ) -> None:
        """`channels_last` is for the loop."""
        self._learner = copy.deepcopy(learner)  # modules may remember something of a call
        self._pool = _repeat(pool, load.batch)
        self._device, self._load, self._sample = device, load, sample
        self._pads, self._channels_last = pads, channels_last

    def most_servers(self) -> int:
        """As many as the fleet has and memory allows."""
        most = min(self._load.servers, _MOST_SERVERS)
        if self._device.type != "cuda":
            return most
        one = _ROWS * self._learner.num_kept * _FLOAT + 2 * self._load.batch * self._sample.training
        free, _ = torch.cuda.mem_get_info(self._device)
        return max(1, min(most, int(_USED_SHARE * free) // one))

    def measure(self, lifting: Lifting | None, servers: int) -> Timing:
        """The shortest turn in this form, or looped over; memory is given back."""
        try:
            return self._measure(self._make_model(lifting), servers)
        finally:
            gc.collect()
            if self._device.type == "cuda":
                torch.cuda.empty_cache()

    def _make_model(self, lifting: Lifting | None) -> LoopedModel:
        if lifting is None:
            return LoopedModel(self._learner, self._device, self._sample, "", channels_last=self._channels_last)
        return LiftedModel(self._learner, self._device, self._sample, "", pads=self._pads, lifting=lifting)

    def _measure(self, model: LoopedModel, servers: int) -> Timing:
        rows, plans = self._make_rows(servers), self._make_plans(servers)
        samples = model.samples(self._pool)
        asked = model.samples(_repeat(self._pool, _ASKED)).x[None]
        before = self._count_allocated()
        used = self._play(model, rows, samples, plans, asked) - before
        if isinstance(model, LiftedModel) and model.lifting.graphs:
            self._play(model, rows, samples, plans, asked)  # captures what has been called once
            if model.graph_failure is not None:
                raise RuntimeError(model.graph_failure)
        gradients = servers * self._learner.num_trainable * _FLOAT
        turns: list[float] = []
        while len(turns) < _TURNS and sum(turns) < _TURN_SECONDS:
            self._synchronise()
            start = time.perf_counter()
            self._play(model, rows, samples, plans, asked)
            self._synchronise()
            turns.append(time.perf_counter() - start)
        return Timing(min(turns), max(0, used - gradients) // (servers * self._load.batch))

    def _play(self, model: LoopedModel, rows: ModelRows, samples: Samples, plans: list[WorkPlan], asked: Tensor) -> int:
        """A step and an evaluation, in TF32 where a GPU has it; returns the bytes at the peak of the step."""
        offsets = rows.params.new_zeros(len(plans), self._learner.task.kind.num_classes)
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
        with torch_products(exact=self._device.type == "cpu"):
            with torch.enable_grad():
                model.fit(rows, samples, plans, np.ones(len(plans)), offsets)
            peak = torch.cuda.max_memory_allocated(self._device) if self._device.type == "cuda" else 0
            with torch.no_grad():
                model.ready(rows.params).logits(asked)
        return peak

    def _make_rows(self, servers: int) -> ModelRows:
        params = self._learner.init(_SEED).to(self._device).repeat(servers, 1)
        blank = self._learner.optimiser.init(self._learner.num_trainable)
        first, second = (params.new_zeros(servers, *each.shape) for each in (blank.first, blank.second))
        return ModelRows(params, first, second, np.zeros(servers, np.int64))

    def _make_plans(self, servers: int) -> list[WorkPlan]:
        """One batch each."""
        indices = np.arange(self._load.batch, dtype=np.int64)
        return [WorkPlan((indices,), len(indices), 0, indices[:1], seed) for seed in range(servers)]

    def _count_allocated(self) -> int:
        return torch.cuda.memory_allocated(self._device) if self._device.type == "cuda" else 0

    def _synchronise(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def _repeat(pool: Batch, size: int) -> Batch:
    indices = torch.arange(size) % len(pool.y)
    return Batch(pool.x[indices], pool.y[indices])
