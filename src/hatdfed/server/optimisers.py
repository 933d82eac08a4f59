"""Optimisers over a flat vector: state in, state out.

Written out because state must be a plain value: it is checkpointed, sent nowhere, and later stacked for many servers.
A test holds them against `torch.optim`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor


class OptimiserState(NamedTuple):
    """Moments of the gradient; empty where the optimiser keeps none."""

    step: int
    first: Tensor  # [T]
    second: Tensor  # [T]


class Optimiser(Protocol):
    """One step of gradient descent."""

    def init(self, num_trainable: int) -> OptimiserState:
        """The state before the first step."""

    def step(self, params: Tensor, gradient: Tensor, state: OptimiserState) -> tuple[Tensor, OptimiserState]:
        """New parameters and new state; the arguments stay as they are."""


@dataclass(frozen=True)
class Adam:
    """D. Kingma, J. Ba. Adam: a method for stochastic optimization. ICLR 2015."""

    learning_rate: float = 1e-3
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-8

    def init(self, num_trainable: int) -> OptimiserState:
        """Both moments at zero."""
        return OptimiserState(0, torch.zeros(num_trainable), torch.zeros(num_trainable))

    def step(self, params: Tensor, gradient: Tensor, state: OptimiserState) -> tuple[Tensor, OptimiserState]:
        """One step with bias-corrected moments."""
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
        """The velocity at zero."""
        return OptimiserState(0, torch.zeros(num_trainable if self.momentum else 0), torch.zeros(0))

    def step(self, params: Tensor, gradient: Tensor, state: OptimiserState) -> tuple[Tensor, OptimiserState]:
        """One step."""
        velocity = state.first * self.momentum + gradient if self.momentum else state.first
        direction = velocity if self.momentum else gradient
        return params - self.learning_rate * direction, OptimiserState(state.step + 1, velocity, state.second)


OPTIMISERS: dict[str, type[Adam] | type[Sgd]] = {"adam": Adam, "sgd": Sgd}
