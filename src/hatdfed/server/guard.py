"""What a server does when its own model is not finite. The rule is the same in every fleet.

After training, the server goes back to the model that it trained from, and its optimiser starts anew. After a merge, it
keeps the model that it had before the merge; if that is not finite either, it takes the mean of the models that it
received. Every such case is counted (`hatdfed.core.refusals`).
"""

from __future__ import annotations

import torch
from torch import Tensor


def is_finite(models: Tensor) -> Tensor:  # [..., P] -> [...]
    """Which models can be used."""
    if models.device.type == "cpu" and bool(torch.isfinite(models.sum(dim=-1)).all()):
        return torch.ones(models.shape[:-1], dtype=torch.bool)  # a quick look that is nearly always enough
    low, high = torch.aminmax(models, dim=-1)
    return torch.isfinite(low) & torch.isfinite(high)


def fallback_weights(present: Tensor, own_is_finite: Tensor) -> Tensor:  # [..., D], [...] -> [..., D]
    """Weights for a merge that failed: all on the server's own model, or equal ones on what it received.

    Slot 0 is its own model. If that is not finite and nothing was received, it is kept all the same.
    """
    own = torch.zeros_like(present)
    own[..., 0] = True
    received = present & ~own
    count = received.sum(dim=-1, keepdim=True)
    return torch.where(own_is_finite[..., None] | (count == 0), own.double(), received / count.clamp(min=1))


def has_failed(weights: Tensor, own_is_finite: Tensor) -> Tensor:  # [..., D], [...] -> [...]
    """Whether the average with these weights is not finite; received models always are."""
    return ~torch.isfinite(weights).all(dim=-1) | (~own_is_finite & (weights[..., 0] != 0))


def has_nothing(present: Tensor, own_is_finite: Tensor) -> Tensor:  # [..., D], [...] -> [...]
    """Whether a server has no finite model at all."""
    return ~own_is_finite & ~present[..., 1:].any(dim=-1)
