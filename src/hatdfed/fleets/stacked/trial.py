"""Find out by a trial step whether a module can be lifted over servers, and how much memory it takes.

A trial step trains four servers, two with three samples, one with two and one with none, lifted and one by one. A
module is lifted if the results agree. The trial is made once for each network, shape of samples and kind of device.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Hashable
from contextlib import nullcontext
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from hatdfed.fleets.stacked.lifted import LiftedModel, liftable_operations
from hatdfed.fleets.stacked.looped import LoopedModel, put_channels_last
from hatdfed.fleets.stacked.model import BytesPerSample, ModelRows
from hatdfed.fleets.stacked.precision import torch_products
from hatdfed.server.learner import Learner
from hatdfed.server.optimisers import Sgd
from hatdfed.server.work import Batch, WorkPlan

_SIZES = (3, 3, 2, 0)  # samples of the trial's servers; batch norm needs two
_SEED = 20  # of the models and their dropouts
# A maximum or a ReLU whose inputs differ in the last digit may choose another side, which changes a sample's gradient.
_GRADIENT_ERROR = 1e-2
_OUTPUT_ERROR = 1e-3
_FALLBACK = "There is a performance drop"  # how torch begins to say that an operation is looped over inside
_FLOAT = 4  # bytes
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_ASKED = (16, 48)  # samples of evaluations whose memory is measured
_SAVED_TWICE = 2  # what is kept on the way forward, and gradients of it on the way back


class Trial(NamedTuple):
    """Whether a module can be lifted."""

    lifts: bool
    pads: bool  # whether batches may be padded
    reason: str  # why it can or cannot be lifted


class Memory(NamedTuple):
    """What samples take."""

    sample: BytesPerSample
    numbers_per_tensor: float  # of one sample in the tensors that are kept for the gradients, on average
    channels_last: bool  # whether the module takes images in the order that convolutions are fastest with


_trials: dict[Hashable, Trial] = {}
_memories: dict[Hashable, Memory] = {}


def try_lifting(learner: Learner, pool: Batch, device: torch.device) -> Trial:
    """Find out whether S models of this learner's network can be trained at once on such samples."""
    key = network_key(learner, pool, device)
    if key not in _trials:
        _trials[key] = _try_lifting(_for_trial(learner), pool, device)
    return _trials[key]


def measure_memory(learner: Learner, pool: Batch, device: torch.device) -> Memory:
    """Find out how much memory such samples take, by steps with few of them."""
    key = network_key(learner, pool, device)
    if key not in _memories:
        _memories[key] = _measure_memory(_for_trial(learner).on_device(device), pool, device)
    return _memories[key]


def network_key(learner: Learner, pool: Batch, device: torch.device) -> Hashable:
    """The network by the function that makes it and what that is given."""
    make = learner.make_module
    network: Hashable = (make.func, make.args) if isinstance(make, partial) and not make.keywords else make
    roles = tuple(learner.roles.items())
    return network, roles, pool.x.shape[1:], pool.x.dtype, learner.task.kind, device.type


def _for_trial(learner: Learner) -> Learner:
    """A copy, as modules may remember something of a call; a step of length 1 of plain descent is the gradient."""
    plain = copy.deepcopy(learner)
    plain.optimiser, plain.private = Sgd(learning_rate=1.0), None
    return plain


def _try_lifting(learner: Learner, pool: Batch, device: torch.device) -> Trial:
    nothing = BytesPerSample(0, 0, 0)
    expected = _play(LoopedModel(learner, device, nothing, ""), pool)
    difference = ""
    for pads in (True, False):
        try:
            results = _play(LiftedModel(learner, device, nothing, "", pads=pads), pool)
        except Exception as error:  # noqa: BLE001 (whatever a module does in a lifted call, it is looped over)
            return Trial(False, False, f"torch.vmap cannot lift it ({_first_sentence(error)})")
        difference = _find_difference(results, expected)
        if not difference:
            how = "every sample is treated by itself" if pads else "servers with batches of the same size go together"
            return Trial(True, pads, f"torch.vmap lifts it: {how}")
    return Trial(False, False, f"{difference} differ when it is lifted by torch.vmap")


class _Results(NamedTuple):
    moved: Tensor  # [S, T] what one step has changed in the parameters
    buffers: Tensor  # [S, M − T] after it
    outputs: Tensor  # [S, B, …] of the models in evaluation


def _play(model: LoopedModel, pool: Batch) -> _Results:
    """One step, and an evaluation."""
    learner = model.learner
    before = torch.stack([learner.init(_SEED + row) for row in range(len(_SIZES))])
    few = Batch(*(part[: max(_SIZES)] for part in pool))
    samples = model.samples(few)
    params = before.to(samples.x.device, copy=True)
    rows = ModelRows(
        params, params.new_zeros(len(params), 0), params.new_zeros(len(params), 0), np.zeros(len(params), np.int64)
    )
    plans = [_plan(size, len(few.x), seed) for seed, size in enumerate(_SIZES)]
    offsets = params.new_zeros(len(params), learner.task.kind.num_classes)
    # TF32 would turn many a ReLU to the other side.
    with warnings.catch_warnings(), torch.enable_grad(), torch_products(exact=True):
        warnings.filterwarnings("error", message=_FALLBACK)
        model.fit(rows, samples, plans, np.ones(len(plans)), offsets)
        outputs = model.ready(params).logits(samples.x[None])  # on a CPU both times one by one
    after, first_buffer = params.cpu(), learner.num_trainable
    moved = after[:, :first_buffer] - before[:, :first_buffer]
    return _Results(moved, after[:, first_buffer:], outputs.cpu())


def _plan(size: int, available: int, seed: int) -> WorkPlan:
    indices = np.arange(size) % available
    return WorkPlan((indices,) if size else (), size, 0, indices, seed)


def _find_difference(results: _Results, expected: _Results) -> str:
    """What differs by more than rounding errors, or nothing."""
    if _is_off(results.moved, expected.moved, _GRADIENT_ERROR):
        return "its gradients"
    if _is_off(results.buffers, expected.buffers, _OUTPUT_ERROR):
        return "its buffers"
    if _is_off(results.outputs, expected.outputs, _OUTPUT_ERROR):
        return "its outputs"
    return ""


def _is_off(results: Tensor, expected: Tensor, error: float) -> bool:
    distance, size = (results - expected).double().norm(), expected.double().norm()
    return not bool(distance <= error * size + 1e-6)


def _first_sentence(error: Exception) -> str:
    line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return line.split(". ")[0].rstrip(".")[:160]


def _measure_memory(learner: Learner, pool: Batch, device: torch.device) -> Memory:
    channels_last = convolves(learner.module) and _takes_channels_last(learner, pool, device)
    with liftable_operations() if device.type == "cuda" else nullcontext():  # they may keep more than fused ones
        few, many = (_count_saved(learner, pool, device, size) for size in (2, 4))
    training = _SAVED_TWICE * (many.bytes - few.bytes) // 2
    if device.type == "cuda":
        training = max(training, (many.peak - few.peak) // 2)
    one = pool.x[:1].to(device)
    outputs = learner.logits(learner.init(_SEED).to(device), one)
    kept = one.nbytes + pool.y[:1].nbytes
    asked = _measure_asked(learner, pool, device) if device.type == "cuda" else training
    sample = BytesPerSample(kept, max(training, 2 * kept), one.nbytes + outputs.nbytes, max(asked, 2 * kept))
    return Memory(sample, (many.bytes - few.bytes) / 2 / _FLOAT / max(1, many.tensors), channels_last)


def _measure_asked(learner: Learner, pool: Batch, device: torch.device) -> int:
    """Bytes that a sample takes at the peak of a forward pass on a GPU; nothing is kept for the way back."""
    params = learner.init(_SEED).to(device)
    peaks = []
    for size in _ASKED:
        x = pool.x[torch.arange(size) % len(pool.x)].to(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        with liftable_operations():
            learner.logits(params, x)
        peaks.append(torch.cuda.max_memory_allocated(device) - before)
    return (peaks[1] - peaks[0]) // (_ASKED[1] - _ASKED[0])


def convolves(module: nn.Module) -> bool:
    """Whether there are convolutions among the layers."""
    return any(isinstance(layer, _CONVOLUTIONS) for layer in module.modules())


def _takes_channels_last(learner: Learner, pool: Batch, device: torch.device) -> bool:
    """A module that uses `view` may insist on the usual order."""
    if pool.x.ndim != 4:
        return False
    batch = Batch(put_channels_last(pool.x[:2].to(device)), pool.y[:2].to(device))
    params = learner.init(_SEED).to(device)
    try:
        learner.fit(params, learner.optimiser.init(learner.num_trainable), [batch], seed=0)
        learner.logits(params, batch.x)
    except RuntimeError:
        return False
    return True


class _Saved(NamedTuple):
    bytes: int  # that are kept from the way forward for the way back
    tensors: int  # in so many tensors
    peak: int  # most memory that was in use on a GPU


def _count_saved(learner: Learner, pool: Batch, device: torch.device, size: int) -> _Saved:
    indices = torch.arange(size) % len(pool.x)
    batch = Batch(pool.x[indices].to(device), pool.y[indices].to(device))
    params = learner.init(_SEED).to(device)
    storages: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        learner.fit(params, learner.optimiser.init(learner.num_trainable), [batch], seed=0)
    peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
    return _Saved(sum(storages.values()), len(storages), peak)
