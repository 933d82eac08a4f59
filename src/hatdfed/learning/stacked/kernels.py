"""Who computes the stages: plain torch anywhere, C on a CPU, Triton on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from hatdfed.learning.stacked.stage import StageOutput, StageShape, infer_stages, train_stage


class StageKernels(Protocol):
    """The stages of one network, for S models at once."""

    @property
    def name(self) -> str:
        """Who they are."""

    def train(
        self, index: int, x: Tensor, weight: Tensor, scale: Tensor, shift: Tensor, counts: Tensor, epsilon: float
    ) -> StageOutput:
        """Stage number `index` in training mode, differentiable."""

    def infer(self, x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], *, exact: bool) -> Tensor:
        """All stages with batch norm folded in; `exact` forbids anything coarser than float32."""


@dataclass(frozen=True)
class TorchStages:
    """Torch operations, on any device."""

    shapes: tuple[StageShape, ...]
    name: str = "torch"

    def train(
        self, index: int, x: Tensor, weight: Tensor, scale: Tensor, shift: Tensor, counts: Tensor, epsilon: float
    ) -> StageOutput:
        """See `stage.train_stage`."""
        return train_stage(self.shapes[index], x, weight, scale, shift, counts, epsilon)

    def infer(self, x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], *, exact: bool) -> Tensor:
        """See `stage.infer_stages`."""
        return infer_stages(list(self.shapes), x, list(weights), list(biases))


def stage_kernels(shapes: Sequence[StageShape], device: torch.device) -> StageKernels:
    """The fastest that this machine can run."""
    return TorchStages(tuple(shapes))
