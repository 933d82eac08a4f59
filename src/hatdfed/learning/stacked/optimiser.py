"""One optimiser step for many servers, in place: every server has its own step count and its own step size."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hatdfed.learning.optimisers import Adam, Optimiser, Sgd
from hatdfed.learning.stacked.step import Rates, Step
from hatdfed.learning.stacked.vectors import vectors_for

Vector = NDArray[np.float64]


def step_rates(optimiser: Optimiser, steps: NDArray[np.int64], scale: Vector) -> NDArray[np.float32]:  # [..., S]
    """Both rates of the step that comes after `steps` earlier ones; `scale` shortens or lengthens it (push-sum)."""
    if isinstance(optimiser, Adam):
        step = optimiser.learning_rate * scale / (1 - optimiser.beta_1 ** (steps + 1.0))
        second = 1 / (1 - optimiser.beta_2 ** (steps + 1.0))
    elif isinstance(optimiser, Sgd):
        step, second = optimiser.learning_rate * scale, np.ones(len(steps))
    else:
        raise TypeError(f"no stacked form of {type(optimiser).__name__}")
    return np.stack([step, second]).astype(np.float32)


def step_in_place(optimiser: Optimiser, step: Step) -> None:
    """Move parameters and moments of the servers that are active; the others stay as they are."""
    if isinstance(optimiser, Adam):
        vectors_for(step.params).adam_in_place(optimiser, step)
    elif isinstance(optimiser, Sgd):
        for start, gradient in step.gradients.items():
            place = slice(start, start + gradient[0].numel())
            params, velocity = step.params[:, place], step.first[:, place]
            _sgd_in_place(optimiser, params, gradient.flatten(1), velocity, step.rates, step.active)
    else:
        raise TypeError(f"no stacked form of {type(optimiser).__name__}")


def _sgd_in_place(sgd: Sgd, params: Tensor, gradient: Tensor, velocity: Tensor, rates: Rates, active: Tensor) -> None:
    direction = gradient
    if sgd.momentum:
        direction = velocity * sgd.momentum + gradient
        velocity.copy_(torch.where(active[:, None] > 0, direction, velocity))
    params.sub_(direction * (rates.step * active)[:, None])
