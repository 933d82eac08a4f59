"""What Python and C tell each other (the structures of stage.c, forward.h and work.h), and threads that share a job."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from ctypes import c_double, c_int64, c_uint, c_void_p
from pathlib import Path

import torch
from torch import Tensor

_PHASES = 4
_MOST_THREADS = 256


class JobProgress(ctypes.Structure):
    """How far a job has come; see work.h."""

    _fields_ = (("servers", c_int64), ("next", c_int64), ("tasks", c_int64 * _PHASES), ("ended", c_void_p))


class Layer(ctypes.Structure):
    """One stage of `Inference`."""

    _fields_ = (
        *((name, c_void_p) for name in ("pack", "infer_images", "weight", "bias", "filters")),
        *((name, c_int64) for name in ("weights", "filter", "channels")),
    )


class KernelJob(ctypes.Structure):
    """Base of what a C function is called with; begins with `work`."""

    work: JobProgress
    memory: tuple[object, ...]  # whatever the pointers point to


class Inference(KernelJob):
    """All stages over all images."""

    _fields_ = (
        ("work", JobProgress),
        *((name, c_int64) for name in ("images", "per_task", "in_size", "out_size", "shared")),
        ("x", c_void_p),
        ("out", c_void_p),
        ("layers", c_int64),
        ("layer", c_void_p),
        *((name, c_int64) for name in ("features", "outputs", "padded_outputs")),
        *((name, c_void_p) for name in ("head", "head_bias")),
    )


class Training(KernelJob):
    """One stage, forward or backward; see `training_job`."""

    _fields_ = (
        ("work", JobProgress),
        ("batch", c_int64),
        ("blocks", c_int64),
        ("counts", c_void_p),
        ("epsilon", c_double),
        *((name, c_void_p) for name in ("x", "weight", "scale", "shift", "filters", "convolved", "image_sums", "norm")),
        *((name, c_void_p) for name in ("pooled", "mean", "variance", "peak", "which", "grad_pooled")),
        *((name, c_void_p) for name in ("grad_x", "grad_weight", "grad_scale", "grad_shift")),
        *((name, c_void_p) for name in ("back_filters", "tap_sums")),
    )


def training_job(batch: int, blocks: int, epsilon: float = 0.0, **tensors: Tensor | None) -> Training:
    """A job over these tensors, named as in forward.h; what is left out is NULL."""
    job = Training(batch=batch, blocks=blocks, epsilon=epsilon)
    for name, tensor in tensors.items():
        if tensor is not None:
            setattr(job, name, tensor.data_ptr())
    job.memory = tuple(tensors.values())
    return job


def declare(library: ctypes.CDLL) -> None:
    """Tells ctypes what the functions take."""
    for name, job in (("infer", Inference), ("train_forward", Training), ("train_backward", Training)):
        getattr(library, name).argtypes = (ctypes.POINTER(job),)
        getattr(library, name).restype = None


def share(function: ctypes._NamedFuncPointer, job: KernelJob, servers: int, tasks: Sequence[int]) -> None:
    """Runs the job on as many threads as torch would use."""
    ended = (c_int64 * (_PHASES * servers))()
    job.work = JobProgress(servers, 0, (c_int64 * _PHASES)(*tasks), ctypes.addressof(ended))
    job.memory = (*job.memory, ended)
    threads = min(torch.get_num_threads(), servers * max(tasks))
    if threads > 1 and _team is not None:
        _team(function, ctypes.byref(job), threads, 0)
        return
    for _ in range(threads - 1):
        # Not waited for: one that comes too late finds nothing to do, and `job` keeps alive what it points to.
        _pool.submit(function, job)
    function(job)


def _torch_team() -> ctypes._NamedFuncPointer | None:
    """What starts a parallel region of the OpenMP library that torch uses.

    After each operation torch's threads spin for milliseconds, in which other threads would have to share the cores
    with them; and they begin at once. The function has had the same arguments since GCC 4.9, and Intel's and LLVM's
    libraries have it too.
    """
    try:
        team = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so")).GOMP_parallel
    except (OSError, AttributeError):
        return None
    team.argtypes, team.restype = (c_void_p, c_void_p, c_uint, c_uint), None
    return team


def _start_pool() -> None:
    global _pool
    _pool = ThreadPoolExecutor(_MOST_THREADS, thread_name_prefix="hatdfed-native")


_team = _torch_team()
_pool: ThreadPoolExecutor  # without a team; its threads start when needed
_start_pool()
os.register_at_fork(after_in_child=_start_pool)  # a forked process has the pool but not its threads
