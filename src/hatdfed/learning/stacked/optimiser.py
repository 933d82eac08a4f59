"""One optimiser step for many servers, in place: every server has its own step count and its own step size."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hatdfed.learning.optimisers import Adam, Optimiser, Sgd
from hatdfed.learning.stacked import triton_vectors
from hatdfed.learning.stacked.rates import Rates

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


class Moments(NamedTuple):
    """What the optimiser remembers about one parameter tensor of every server; None where it remembers nothing."""

    first: Tensor | None  # [S, n]
    second: Tensor | None  # [S, n]


def step_in_place(
    optimiser: Optimiser, params: Tensor, gradient: Tensor, moments: Moments, rates: Rates, active: Tensor
) -> None:  # [S, n], [S, n], …, [S] 1 or 0
    """Move `params` and the moments of the servers that are active; the others stay as they are."""
    if isinstance(optimiser, Adam) and moments.first is not None and moments.second is not None:
        adam_in_place = triton_vectors.adam_in_place if triton_vectors.on_gpu(params) else _adam_in_place
        adam_in_place(optimiser, params, gradient, moments.first, moments.second, rates, active)
    elif isinstance(optimiser, Sgd):
        _sgd_in_place(optimiser, params, gradient, moments.first, rates, active)
    else:
        raise TypeError(f"no stacked form of {type(optimiser).__name__}")


def _adam_in_place(
    adam: Adam, params: Tensor, gradient: Tensor, first: Tensor, second: Tensor, rates: Rates, active: Tensor
) -> None:
    share_1, share_2 = ((1 - beta) * active[:, None] for beta in (adam.beta_1, adam.beta_2))
    first.lerp_(gradient, share_1)
    second.lerp_(gradient.square(), share_2)
    scale = (second * rates.second[:, None]).sqrt_().add_(adam.epsilon)
    params.sub_((first / scale).mul_((rates.step * active)[:, None]))


def _sgd_in_place(
    sgd: Sgd, params: Tensor, gradient: Tensor, velocity: Tensor | None, rates: Rates, active: Tensor
) -> None:
    direction = gradient
    if velocity is not None:
        direction = velocity * sgd.momentum + gradient
        velocity.copy_(torch.where(active[:, None] > 0, direction, velocity))
    params.sub_(direction * (rates.step * active)[:, None])
