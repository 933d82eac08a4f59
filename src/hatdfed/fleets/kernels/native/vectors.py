"""Adam, the merge, norms, the consensus distance and dropout in C, for rows of a matrix; see vectors.c."""

from __future__ import annotations

import ctypes
import functools
from ctypes import c_double, c_float, c_int64, c_uint32, c_void_p

import torch
from torch import Tensor

from hatdfed.fleets.kernels.native.build import vector_library
from hatdfed.fleets.kernels.native.jobs import JobProgress, KernelJob, share
from hatdfed.fleets.stacked.model import Step
from hatdfed.server.dropout import make_salt, make_scale, make_threshold
from hatdfed.server.optimisers import Adam

_BLOCK = 1 << 14  # vectors.c


class _Segment(ctypes.Structure):
    _fields_ = (("start", c_int64), ("length", c_int64), ("gradient", c_void_p), ("apart", c_int64))


class _AdamStep(KernelJob):
    _fields_ = (
        ("work", JobProgress),
        ("segments", c_int64),
        ("segment", c_void_p),
        *((name, c_void_p) for name in ("params", "first", "second")),
        *((name, c_int64) for name in ("params_apart", "first_apart", "second_apart")),
        *((name, c_void_p) for name in ("step", "unbias", "active")),
        *((name, c_double) for name in ("share_1", "share_2", "epsilon")),
    )


class _Merge(KernelJob):
    _fields_ = (
        ("work", JobProgress),
        ("length", c_int64),
        ("slots", c_int64),
        *((name, c_void_p) for name in ("weights", "sender", "own", "sent", "out")),
        *((name, c_int64) for name in ("own_apart", "sent_apart", "out_apart")),
        ("square", c_void_p),
    )


class _Norms(KernelJob):
    _fields_ = (
        ("work", JobProgress),
        ("length", c_int64),
        ("models", c_void_p),
        ("apart", c_int64),
        ("square", c_void_p),
    )


class _Distance(KernelJob):
    _fields_ = (
        ("work", JobProgress),
        ("length", c_int64),
        ("servers", c_int64),
        ("models", c_void_p),
        ("run_apart", c_int64),
        ("server_apart", c_int64),
        ("apart", c_void_p),
        ("square", c_void_p),
    )


class _Dropout(KernelJob):
    _fields_ = (
        ("work", JobProgress),
        ("size", c_int64),
        ("seeds", c_void_p),
        ("salt", c_uint32),
        ("threshold", c_uint32),
        ("scale", c_float),
        ("factors", c_void_p),
    )


class NativeVectors:
    """What `native_vectors` returns; float32 on the CPU only."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._adam_step, self._merge = library.adam_step, library.merge
        self._norms, self._distance, self._dropout = library.norms, library.distance, library.dropout
        functions = (self._adam_step, self._merge, self._norms, self._distance, self._dropout)
        for function, job in zip(functions, (_AdamStep, _Merge, _Norms, _Distance, _Dropout), strict=True):
            function.argtypes, function.restype = (ctypes.POINTER(job),), None

    def adam_in_place(self, adam: Adam, step: Step) -> None:
        """See `optimiser.step_in_place`."""
        parts = {start: gradient.flatten(1) for start, gradient in step.gradients.items()}
        segments = (_Segment * len(parts))(
            *(_Segment(start, part.shape[1], part.data_ptr(), part.stride(0)) for start, part in parts.items())
        )
        job = _AdamStep(
            segments=len(segments), segment=ctypes.addressof(segments),
            params=step.params.data_ptr(), first=step.first.data_ptr(), second=step.second.data_ptr(),
            params_apart=step.params.stride(0), first_apart=step.first.stride(0), second_apart=step.second.stride(0),
            step=step.rates.step.data_ptr(), unbias=step.rates.second.data_ptr(), active=step.active.data_ptr(),
            share_1=1 - adam.beta_1, share_2=1 - adam.beta_2, epsilon=adam.epsilon,
        )  # fmt: skip
        job.memory = (segments, parts, step)
        blocks = sum(-(-part.shape[1] // _BLOCK) for part in parts.values())
        share(self._adam_step, job, len(step.params), (blocks,))

    def weighted_rows(self, weights: Tensor, own: Tensor, sent: Tensor, sender: Tensor, out: Tensor) -> Tensor:
        """See `vectors.Vectors`."""
        weights, sender = weights.contiguous(), sender.contiguous()
        blocks = -(-own.shape[1] // _BLOCK)
        square = torch.zeros(len(own), blocks, dtype=torch.float64)
        job = _Merge(
            length=own.shape[1], slots=weights.shape[1], weights=weights.data_ptr(), sender=sender.data_ptr(),
            own=own.data_ptr(), sent=sent.data_ptr(), out=out.data_ptr(),
            own_apart=own.stride(0), sent_apart=sent.stride(0), out_apart=out.stride(0), square=square.data_ptr(),
        )  # fmt: skip
        job.memory = (weights, sender, own, sent, out, square)
        share(self._merge, job, len(own), (blocks,))
        return square.sum(dim=1).sqrt_()

    def norms(self, models: Tensor) -> Tensor:  # [S, P] -> [S]
        """See `hatdfed.server.guard`."""
        blocks = -(-models.shape[1] // _BLOCK)
        square = torch.zeros(len(models), blocks, dtype=torch.float64)
        job = _Norms(length=models.shape[1], models=models.data_ptr(), apart=models.stride(0), square=square.data_ptr())
        job.memory = (models, square)
        share(self._norms, job, len(models), (blocks,))
        return square.sum(dim=1).sqrt_()

    def consensus_distance(self, models: Tensor) -> Tensor:  # [R, n, P] -> [R]
        """See `hatdfed.server.consensus`; sums of every block of parameters first, then of all blocks."""
        runs, servers, size = models.shape
        blocks = -(-size // _BLOCK)
        apart = torch.zeros(blocks, runs, servers, dtype=torch.float64)
        square = torch.zeros(blocks, runs, dtype=torch.float64)
        job = _Distance(
            length=size, servers=servers, models=models.data_ptr(), run_apart=models.stride(0),
            server_apart=models.stride(1), apart=apart.data_ptr(), square=square.data_ptr(),
        )  # fmt: skip
        job.memory = (models, apart, square)
        share(self._distance, job, runs, (blocks,))
        return apart.sum(dim=0).sqrt_().mean(dim=1) / square.sum(dim=0).sqrt_()

    def dropout_factors(
        self, seeds: Tensor, *, step: int, layer: int, batch: int, units: int, probability: float
    ) -> Tensor:  # [S] -> [S, batch, units]
        """See `vectors.dropout_factors`."""
        size, seeds = batch * units, seeds.contiguous()
        factors = torch.empty(len(seeds), batch, units)
        job = _Dropout(
            size=size, seeds=seeds.data_ptr(), salt=make_salt(step, layer), threshold=make_threshold(probability),
            scale=make_scale(probability), factors=factors.data_ptr(),
        )  # fmt: skip
        job.memory = (seeds, factors)
        share(self._dropout, job, len(seeds), (-(-size // _BLOCK),))
        return factors


@functools.cache
def native_vectors() -> NativeVectors | None:
    """Compiled, or None where that cannot be done."""
    library = vector_library()
    return None if library is None else NativeVectors(library)
