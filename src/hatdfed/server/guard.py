"""Which models a server may use, and what it does when its own is none of them. The rule is the same in every fleet.

A model is usable if it is finite and its norm is at most that of a freshly drawn one times `GROWTH`, or a root mean
square of `FLOOR` for networks that begin near zero. Honest training stays far below; a model beyond it, sent or
trained, would end all learning where it is merged. The bound does not follow the models as they grow, so nobody can
push it up round by round.

A received model that is not usable is refused. After training, a server whose model is not usable goes back to the one
that it trained from, and its optimiser starts anew. After a merge, it keeps the model that it had before the merge; if
that is not usable either, it takes the mean of the models that it received. Every such case is counted
(`hatdfed.core.refusals`).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

GROWTH = 50.0  # times the norm of a fresh model; in long honest runs norms grow by less than 2
FLOOR = 5.0  # root mean square of a model's numbers that is always allowed


def compute_norms(models: Tensor) -> Tensor:  # [..., P] -> [...]
    """Norm of every model; nan or infinity for one that is not finite.

    On a GPU, where another pass would cost time, a norm beyond 10^19 counts as infinite, too.
    """
    norms: Tensor = torch.linalg.vector_norm(models, dim=-1)
    if models.device.type == "cpu" and not bool(torch.isfinite(norms).all()):
        norms = torch.linalg.vector_norm(models, dim=-1, dtype=torch.float64)  # where finite float32 cannot overflow
    return norms


def largest_norm(fresh: Tensor) -> float:  # [P]
    """The largest norm of a usable model, given a freshly drawn one."""
    return max(GROWTH * float(compute_norms(fresh)), FLOOR * math.sqrt(len(fresh)))


def is_usable(norms: Tensor, largest: Tensor | float) -> Tensor:  # [...] -> [...]
    """Which models can be used."""
    return norms <= largest  # never true of nan


def fallback_weights(present: Tensor, own_is_usable: Tensor) -> Tensor:  # [..., D], [...] -> [..., D]
    """Weights for a merge that failed: all on the server's own model, or equal ones on what it received.

    Slot 0 is its own model. If that is not usable and nothing was received, it is kept all the same.
    """
    weights = present.double()
    weights[..., 0] = 0.0
    count = weights.sum(dim=-1, keepdim=True)
    keeps_own = own_is_usable[..., None] | (count == 0)
    weights = torch.where(keeps_own, 0.0, weights / count.clamp(min=1))
    weights[..., :1] = keeps_own
    return weights


def has_failed(weights: Tensor, own_is_usable: Tensor) -> Tensor:  # [..., D], [...] -> [...]
    """Whether the average with these weights is not usable; received models always are."""
    is_infinite = (weights - weights).any(dim=-1)  # nan where a weight is not finite, and 0 elsewhere
    return is_infinite | (torch.where(own_is_usable, 0.0, weights[..., 0]) != 0)


def has_nothing(present: Tensor, own_is_usable: Tensor) -> Tensor:  # [..., D], [...] -> [...]
    """Whether a server has no usable model at all."""
    return ~(own_is_usable | present[..., 1:].any(dim=-1))
