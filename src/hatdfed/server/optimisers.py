"""Optimisers as pure functions of a flat vector and a state.

The state is a plain value: it is checkpointed, never sent, and stacked for many servers. `Adam` and `Sgd` are written
out, as kernels compute them; tests compare them with `torch.optim`. `TorchOptimiser` makes such a function of any
element-wise optimiser of `torch.optim`.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from hatdfed.errors import ConfigError, did_you_mean


class OptimiserState(NamedTuple):
    """Moments of the gradient; empty for moments that the optimiser does not use."""

    step: int
    first: Tensor  # [T], or [T, k] of a `TorchOptimiser` that remembers k numbers of each parameter
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


@dataclass(frozen=True)
class TorchOptimiser:
    """An optimiser of `torch.optim` that treats every parameter by itself, with its state as a plain value.

    Parameters may be those of one server [n], or of several servers [S, n] that have made the same number of steps.
    """

    kind: type[torch.optim.Optimizer]
    learning_rate: float = 1e-3
    settings: Mapping[str, Any] = field(default_factory=dict)

    def init(self, num_trainable: int) -> OptimiserState:
        """Return zeros; torch makes its own first values in the first step."""
        return OptimiserState(0, torch.zeros(num_trainable, len(self._remembered)), torch.zeros(0))

    def step(self, params: Tensor, gradient: Tensor, state: OptimiserState) -> tuple[Tensor, OptimiserState]:
        """Take one step of the optimiser, of which a new one is made that knows nothing but `state`."""
        moved = params.detach().clone()
        moved.grad = gradient
        optimiser = self._make(moved)
        if state.step:
            optimiser.state[moved] = self._recall(state)
        optimiser.step()
        after = self._remember(optimiser.state[moved], moved)
        return moved.detach(), OptimiserState(state.step + 1, after, state.second)

    @cached_property
    def _remembered(self) -> dict[str, bool]:
        """What is remembered besides the number of steps, and whether it is one number for all parameters.

        A number such as NAdam's product of momenta depends on nothing but the number of steps.
        """
        trial = torch.zeros(2)
        trial.grad = torch.zeros(2)
        optimiser = self._make(trial)
        optimiser.step()
        found = {name: value for name, value in optimiser.state[trial].items() if name != "step"}
        return {name: value.dim() == 0 for name, value in found.items() if value is not None}

    def _make(self, params: Tensor) -> torch.optim.Optimizer:
        return self.kind([params], lr=self.learning_rate, foreach=False, **self.settings)  # type: ignore[call-arg]

    def _recall(self, state: OptimiserState) -> dict[str, Tensor]:
        recalled = {"step": torch.tensor(float(state.step))}
        for (name, is_one), values in zip(self._remembered.items(), state.first.unbind(dim=-1), strict=True):
            recalled[name] = values.flatten()[0].clone().cpu() if is_one else values.clone()
        return recalled

    def _remember(self, state: Mapping[str, Tensor], params: Tensor) -> Tensor:  # -> [..., k]
        if not self._remembered:
            return params.new_zeros(*params.shape, 0)
        return torch.stack([state[name].to(params.device).expand_as(params) for name in self._remembered], dim=-1)


# Optimisers of torch that treat every parameter by itself; others need whole matrices or the loss as a function.
ELEMENT_WISE: dict[str, type[torch.optim.Optimizer]] = {
    kind.__name__.lower(): kind
    for kind in (
        torch.optim.Adadelta,
        torch.optim.Adagrad,
        torch.optim.Adam,
        torch.optim.AdamW,
        torch.optim.Adamax,
        torch.optim.ASGD,
        torch.optim.NAdam,
        torch.optim.RAdam,
        torch.optim.RMSprop,
        torch.optim.Rprop,
        torch.optim.SGD,
    )
}
_OWN_SETTINGS = {"lr": "learner.learning_rate", "momentum": "learner.momentum"}
_EXECUTION = {"params", "foreach", "fused", "capturable", "differentiable"}  # how torch computes, not what


def make_torch_optimiser(
    name: str, learning_rate: float, momentum: float, settings: Mapping[str, Any]
) -> TorchOptimiser:
    """Make an optimiser of torch, refused with a sentence if it does not take these settings."""
    kind = ELEMENT_WISE[name]
    taken = set(inspect.signature(kind).parameters)
    known = taken - _EXECUTION - set(_OWN_SETTINGS)
    for key in settings:
        if key in _OWN_SETTINGS:
            raise ConfigError(f"learner.optimiser_settings has {key!r}, which is set by {_OWN_SETTINGS[key]}.")
        if key not in known:
            raise ConfigError(f"torch.optim.{kind.__name__} has no setting {key!r}. {did_you_mean(key, known)}")
    chosen = {**settings, **({"momentum": momentum} if "momentum" in taken else {})}
    optimiser = TorchOptimiser(kind, learning_rate, chosen)
    try:
        optimiser.init(1)
    except (TypeError, ValueError, RuntimeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ConfigError(
            f"torch.optim.{kind.__name__} cannot take learner.learning_rate {learning_rate:g} with "
            f"learner.optimiser_settings {dict(settings)!s:.200}: {reason.rstrip('.'):.200}. Change one of them."
        ) from None
    return optimiser


OPTIMISERS: dict[str, type[Adam] | type[Sgd]] = {"adam": Adam, "sgd": Sgd}
