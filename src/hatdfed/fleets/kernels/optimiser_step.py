"""One step of an optimiser for many servers: what goes into it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from hatdfed.server.optimisers import Adam, Optimiser, Sgd


class Rates(NamedTuple):
    """What one step of Adam needs to know about each server."""

    step: Tensor  # [S] how far to go along the first moment: learning rate over its bias
    second: Tensor  # [S] what the second moment is multiplied with to undo its bias


Gradients = Mapping[int, Tensor]  # [S, …] of a tensor, by where it starts in a row of parameters


class Step(NamedTuple):
    """Parameters and moments are changed in place; rows may lie apart."""

    params: Tensor  # [S, P]
    gradients: Gradients
    first: Tensor  # [S, T] or [S, 0]
    second: Tensor  # [S, T] or [S, 0]
    rates: Rates
    active: Tensor  # [S] 1, or 0 for a server that stays as it is


def step_rates(
    optimiser: Optimiser, steps: NDArray[np.int64], scale: NDArray[np.float64]
) -> NDArray[np.float32]:  # [..., S]
    """Both rates of the step that comes after `steps` earlier ones; `scale` shortens or lengthens it (push-sum)."""
    if isinstance(optimiser, Adam):
        step = optimiser.learning_rate * scale / (1 - optimiser.beta_1 ** (steps + 1.0))
        second = 1 / (1 - optimiser.beta_2 ** (steps + 1.0))
    elif isinstance(optimiser, Sgd):
        step, second = optimiser.learning_rate * scale, np.ones(len(steps))
    else:
        raise TypeError(f"no stacked form of {type(optimiser).__name__}")
    return np.stack([step, second]).astype(np.float32)
