"""The plug point of local training: cross-entropy of the logits plus what a loss adds to them.

What is added depends on the server's own labels only, is there while training, and not when a model is judged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from hatdfed.errors import ConfigError
from hatdfed.registry import Registry


class LocalLoss(Protocol):
    """How a server's training differs from plain cross-entropy."""

    def offset(self, label_counts: Tensor) -> Tensor:
        """What is added to the logits, from how many images of each label the server owns; [..., C] -> [..., C]."""


@dataclass(frozen=True)
class CrossEntropy:
    """The paper's: nothing is added."""

    def offset(self, label_counts: Tensor) -> Tensor:
        """Nothing."""
        return torch.zeros_like(label_counts, dtype=torch.float32)


@dataclass(frozen=True)
class LabelPrior:
    """Logits plus the logarithm of the server's label shares.

    What the shares explain, the model need not learn: a server that owns few images of a label no longer teaches its
    model that the label is rare. A. K. Menon et al. Long-tail learning via logit adjustment. ICLR 2021; for federated
    label skew J. Zhang et al. Federated learning with label distribution skew via logits calibration. ICML 2022.
    """

    strength: float = 1.0
    smoothing: float = 1.0  # images that every label is given on top, so that a label the server lacks has a share

    def __post_init__(self) -> None:
        if not 0 <= self.strength <= 10:
            raise ConfigError(f"loss.strength is {self.strength}, but must lie between 0 and 10; 1 is the whole prior.")
        if not self.smoothing > 0:
            raise ConfigError(f"loss.smoothing is {self.smoothing}, but must be above 0.")

    def offset(self, label_counts: Tensor) -> Tensor:
        """strength · log of the smoothed shares."""
        smoothed = label_counts.to(torch.float32) + self.smoothing
        return self.strength * torch.log(smoothed / smoothed.sum(dim=-1, keepdim=True))


LOSSES: Registry[type[LocalLoss]] = Registry(
    "hatdfed.losses",
    {"cross-entropy": CrossEntropy, "label-prior": LabelPrior},
    wanted="a class with `offset`",
    fits=lambda thing: isinstance(thing, type) and hasattr(thing, "offset"),
)
