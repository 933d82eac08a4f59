"""Losses of local training: cross-entropy of the logits plus an offset.

The offset depends on the server's own labels only and is used in training, not in evaluation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from hatdfed.errors import ConfigError, naming_failures
from hatdfed.registry import Registry


class LocalLoss(Protocol):
    """A loss of local training, defined by its offset to the logits."""

    def offset(self, label_counts: Tensor) -> Tensor:
        """Compute the offset from the number of images of each label that the server owns; [..., C] -> [..., C]."""


@dataclass(frozen=True)
class CrossEntropy:
    """Plain cross-entropy, as in the paper."""

    def offset(self, label_counts: Tensor) -> Tensor:
        """Return zeros."""
        return torch.zeros_like(label_counts, dtype=torch.float32)


@dataclass(frozen=True)
class LabelPrior:
    """Logit adjustment: the offset is the logarithm of the server's label shares.

    The model need not learn what the shares explain: training on a server that owns few images of a label does not
    teach the model that the label is rare. A. K. Menon et al. Long-tail learning via logit adjustment. ICLR 2021; for
    federated label skew J. Zhang et al. Federated learning with label distribution skew via logits calibration. ICML
    2022.
    """

    strength: float = 1.0
    smoothing: float = 1.0  # images added to the count of every label, so that a label without images has a share

    def __post_init__(self) -> None:
        if not 0 <= self.strength <= 10:
            raise ConfigError(f"loss.strength is {self.strength}, but must lie between 0 and 10; 1 is the whole prior.")
        if not self.smoothing > 0:
            raise ConfigError(f"loss.smoothing is {self.smoothing}, but must be above 0.")

    def offset(self, label_counts: Tensor) -> Tensor:
        """Compute strength · log of the smoothed shares."""
        smoothed = label_counts.to(torch.float32) + self.smoothing
        return self.strength * torch.log(smoothed / smoothed.sum(dim=-1, keepdim=True))


LOSSES: Registry[type[LocalLoss]] = Registry(
    "hatdfed.losses",
    {"cross-entropy": CrossEntropy, "label-prior": LabelPrior},
    wanted="a class with `offset`",
    fits=lambda thing: isinstance(thing, type),
    methods=("offset",),
)


def check_loss(name: str, loss: LocalLoss, num_classes: int) -> None:
    """Refuse a loss whose offset is not one finite number for each class, tried on made-up counts."""
    for counts in (torch.arange(num_classes), torch.arange(2 * num_classes).reshape(2, num_classes)):
        with naming_failures(f"loss {name!r}: offset"):
            offset = loss.offset(counts)
        if not isinstance(offset, Tensor):
            raise ConfigError(f"loss {name!r}: offset returned {type(offset).__name__}, but must return a tensor.")
        if offset.shape != counts.shape or not offset.isfinite().all():
            raise ConfigError(
                f"loss {name!r}: offset made {list(offset.shape)} of label counts {list(counts.shape)}, but must "
                "return one finite number for each of them."
            )
