"""Which stacked form a network gets: kernels of our own, lifted by `torch.vmap`, or looped over."""

from __future__ import annotations

import torch

from hatdfed.fleets.kernels.blueprint import read_blueprint
from hatdfed.fleets.kernels.model import KernelModel
from hatdfed.fleets.stacked.lifted import LiftedModel, Lifting
from hatdfed.fleets.stacked.looped import LoopedModel
from hatdfed.fleets.stacked.model import NotStackableError, StackedModel
from hatdfed.fleets.stacked.trial import convolves, measure_memory, try_lifting
from hatdfed.server.learner import Learner
from hatdfed.server.networks.recurrent import Lstm
from hatdfed.server.work import Batch

# On a CPU lifting saves calls, not arithmetic: it pays where layers give out few numbers a sample. Convolutions of
# several servers are one convolution in groups, which torch computes slowly. Tried out on one CPU; no limit is sharp.
_SMALL_TENSOR, _SMALL_CONVOLUTION = 2000, 500
_ON_GPU = Lifting()  # benchmarks/networks.py measures the other ways


def choose_model(learner: Learner, pool: Batch, device: torch.device) -> StackedModel:
    """The fastest stacked form of the learner's network for such samples."""
    if _has_kernels(learner, pool):
        return KernelModel(learner, pool.x.shape[1:], device)
    memory = measure_memory(learner, pool, device)
    against = _find_obstacle(learner, memory.numbers_per_tensor, device)
    if against is not None:
        return LoopedModel(learner, device, memory.sample, against, channels_last=memory.channels_last)
    trial = try_lifting(learner, pool, device)
    if not trial.lifts:
        return LoopedModel(learner, device, memory.sample, trial.reason, channels_last=memory.channels_last)
    lifting = _ON_GPU if device.type == "cuda" else Lifting()
    return LiftedModel(learner, device, memory.sample, trial.reason, pads=trial.pads, lifting=lifting)


def _has_kernels(learner: Learner, pool: Batch) -> bool:
    if (
        learner.private is not None
        or learner.frozen
        or not learner.task.kind.has_classes
        or not pool.x.is_floating_point()
    ):
        return False
    try:
        read_blueprint(learner.module, pool.x.shape[1:])
    except NotStackableError:
        return False
    return True


def _find_obstacle(learner: Learner, numbers_per_tensor: float, device: torch.device) -> str | None:
    """Why servers are better trained one at a time, if they are; found without a trial."""
    if learner.private is not None:
        return "privacy.clip needs the gradient of every sample"
    if device.type != "cpu":
        return None
    if any(isinstance(layer, Lstm) for layer in learner.module.modules()):
        return "on a CPU torch's own LSTM, which cannot be lifted, is faster"
    has_convolutions = convolves(learner.module)
    if numbers_per_tensor <= (_SMALL_CONVOLUTION if has_convolutions else _SMALL_TENSOR):
        return None
    layers = "convolutions" if has_convolutions else "layers"
    return f"on a CPU {layers} of this size are faster for one server at a time"
