"""Optimisers as pure functions of a flat vector and a state.

`torch.optim` is not used because the state must be a plain value: it is checkpointed, never sent, and stacked for many
servers. Tests compare the results with those of `torch.optim`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor


class OptimiserState(NamedTuple):
    """Moments of the gradient; empty for moments that the optimiser does not use."""

    step: int
    first: Tensor  # [T]
    second: Tensor  # [T]


class Optimiser(Protocol):
    """Takes steps of gradient descent."""

    def init(self, num_trainable: int) -> OptimiserState:
        """Return the state before the first step."""

    def step(self, params: Tensor, gradient: Tensor, state: OptimiserState) -> tuple[Tensor, OptimiserState]:
        """Take one step; return new parameters and state and leave the arguments unchanged."""


@dataclass(frozen=True)
class Adam:
    """D. Kingma, J. Ba. Adam: a method for stochastic optimization. ICLR 2015."""

    learning_rate: float = 1e-3
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-8

    def init(self, num_trainable: int) -> OptimiserState:
        """Return both moments at zero."""
        return OptimiserState(0, torch.zeros(num_trainable), torch.zeros(num_trainable))

    def step(self, params: Tensor, gradient: Tensor, state: OptimiserState) -> tuple[Tensor, OptimiserState]:
        """Take one step with bias-corrected moments."""
        step = state.step + 1
        first = torch.lerp(state.first, gradient, 1 - self.beta_1)
        second = (state.second * self.beta_2).addcmul_(gradient, gradient, value=1 - self.beta_2)
        scale = (second / (1 - self.beta_2**step)).sqrt_().add_(self.epsilon)
        moved = torch.addcdiv(params, first, scale, value=-self.learning_rate / (1 - self.beta_1**step))
        return moved, OptimiserState(step, first, second)


@dataclass(frozen=True)
class Sgd:
    """Stochastic gradient descent with heavy-ball momentum."""

    learning_rate: float = 1e-2
    momentum: float = 0.0

    def init(self, num_trainable: int) -> OptimiserState:
        """Return the velocity at zero."""
        return OptimiserState(0, torch.zeros(num_trainable if self.momentum else 0), torch.zeros(0))

    def step(self, params: Tensor, gradient: Tensor, state: OptimiserState) -> tuple[Tensor, OptimiserState]:
        """Take one step."""
        velocity = state.first * self.momentum + gradient if self.momentum else state.first
        direction = velocity if self.momentum else gradient
        return params - self.learning_rate * direction, OptimiserState(state.step + 1, velocity, state.second)


OPTIMISERS: dict[str, type[Adam] | type[Sgd]] = {"adam": Adam, "sgd": Sgd}
