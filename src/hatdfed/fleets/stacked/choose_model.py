"""Which stacked form a network gets: kernels of our own, lifted by `torch.vmap`, or looped over."""

from __future__ import annotations

from collections.abc import Hashable

import torch

from hatdfed.fleets.kernels.blueprint import read_blueprint
from hatdfed.fleets.kernels.model import KernelModel
from hatdfed.fleets.stacked.convolutions import has_other_forms
from hatdfed.fleets.stacked.lifted import LiftedModel
from hatdfed.fleets.stacked.looped import LoopedModel
from hatdfed.fleets.stacked.model import NotStackableError, StackedModel
from hatdfed.fleets.stacked.step_timer import Load, StepTimer
from hatdfed.fleets.stacked.timed_choice import TimedChoice, find_fastest
from hatdfed.fleets.stacked.trial import Memory, Trial, convolves, measure_memory, network_key, try_lifting
from hatdfed.server.learner import Learner
from hatdfed.server.networks.recurrent import Lstm
from hatdfed.server.work import Batch

# On a CPU lifting saves calls, not arithmetic: it pays where layers give out few numbers a sample. Convolutions of
# several servers are one convolution in groups, which torch computes slowly. Tried out on one CPU; no limit is sharp.
_SMALL_TENSOR, _SMALL_CONVOLUTION = 2000, 500
_USUAL = Load()

_choices: dict[Hashable, TimedChoice] = {}  # a fleet asks twice: for its memory, and for itself


def choose_model(learner: Learner, pool: Batch, device: torch.device, load: Load = _USUAL) -> StackedModel:
    """The fastest stacked form of the learner's network for such samples; `load` is what is timed on a GPU."""
    if _has_kernels(learner, pool):
        return KernelModel(learner, pool.x.shape[1:], device)
    memory = measure_memory(learner, pool, device)
    against = _find_obstacle(learner, memory.numbers_per_tensor, device)
    if against is not None:
        return LoopedModel(learner, device, memory.sample, against, channels_last=memory.channels_last)
    trial = try_lifting(learner, pool, device)
    if not trial.lifts:
        return LoopedModel(learner, device, memory.sample, trial.reason, channels_last=memory.channels_last)
    if device.type != "cuda":
        return LiftedModel(learner, device, memory.sample, trial.reason, pads=trial.pads)
    return _choose_by_time(learner, pool, device, load, memory, trial)


def _choose_by_time(
    learner: Learner, pool: Batch, device: torch.device, load: Load, memory: Memory, trial: Trial
) -> StackedModel:
    """Among the forms of a network that can be lifted; timed once in a process."""
    key = (network_key(learner, pool, device), type(learner.optimiser), load)
    if key not in _choices:
        last = memory.channels_last
        timer = StepTimer(learner, pool, device, load, memory.sample, pads=trial.pads, channels_last=last)
        _choices[key] = find_fastest(timer.measure, timer.most_servers(), convolves=has_other_forms(learner.module))
    chosen = _choices[key]
    if chosen.lifting is None:
        return LoopedModel(learner, device, memory.sample, chosen.reason, channels_last=memory.channels_last)
    sample = memory.sample._replace(training=max(memory.sample.training, chosen.training_bytes))
    reason = f"{trial.reason}; {chosen.reason}"
    return LiftedModel(learner, device, sample, reason, pads=trial.pads, lifting=chosen.lifting)


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
