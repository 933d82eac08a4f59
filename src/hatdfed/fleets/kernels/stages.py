"""Who computes the stages: plain torch anywhere, C on a CPU, Triton on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from hatdfed.fleets.kernels.native.stages import NativeStages, native_stages
from hatdfed.fleets.kernels.torch_stage import StageOutput, StageShape, infer_stages, train_stage
from hatdfed.fleets.kernels.triton import stage as triton_stage

SMALL_HEAD = 64  # outputs

Tensors = Sequence[Tensor]
Head = tuple[Tensor, Tensor]  # [S, out, features], channels last; [S, out]


class StageKernels(Protocol):
    """The stages of one network, for S models at once."""

    @property
    def name(self) -> str:
        """Who they are."""

    def train(
        self, index: int, x: Tensor, weight: Tensor, scale: Tensor, shift: Tensor, counts: Tensor, epsilon: float
    ) -> StageOutput:
        """Stage number `index` in training mode, differentiable."""

    def infer(self, x: Tensor, weights: Tensors, biases: Tensors, head: Head, *, exact: bool) -> Tensor:
        """All stages with batch norm folded in, and the fully connected layer behind them; -> [S, B, out] in float32.

        `exact` forbids anything coarser than what training has.
        """


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

    def infer(self, x: Tensor, weights: Tensors, biases: Tensors, head: Head, *, exact: bool) -> Tensor:
        """See `stage.infer_stages`."""
        return apply_head(infer_stages(list(self.shapes), x, list(weights), list(biases)), head)


@dataclass(frozen=True)
class CompiledStages:
    """C code for this processor."""

    stages: NativeStages
    name: str = "native"

    def train(
        self, index: int, x: Tensor, weight: Tensor, scale: Tensor, shift: Tensor, counts: Tensor, epsilon: float
    ) -> StageOutput:
        """See `stage.train_stage`."""
        return self.stages.train(index, x, weight, scale, shift, counts, epsilon)

    def infer(self, x: Tensor, weights: Tensors, biases: Tensors, head: Head, *, exact: bool) -> Tensor:
        """A small head is computed while an image's features are in the cache."""
        if head[0].shape[1] <= SMALL_HEAD:
            return self.stages.infer(x, weights, biases, head)
        return apply_head(self.stages.infer(x, weights, biases), head)


@dataclass(frozen=True)
class TritonStages:
    """GPU kernels: training in TF32, coarse evaluation in bfloat16; all in float32 when `exact`, which is slow."""

    shapes: tuple[StageShape, ...]
    exact: bool = False
    name: str = "triton"

    def train(
        self, index: int, x: Tensor, weight: Tensor, scale: Tensor, shift: Tensor, counts: Tensor, epsilon: float
    ) -> StageOutput:
        """See `stage.train_stage`."""
        shape = self.shapes[index]
        return triton_stage.train(shape, x, weight, scale, shift, counts, epsilon, precision=self._precision)

    def infer(self, x: Tensor, weights: Tensors, biases: Tensors, head: Head, *, exact: bool) -> Tensor:
        """See `stage.infer_stages`."""
        dtype = torch.float32 if exact or self.exact else torch.bfloat16
        features = triton_stage.infer(self.shapes, x, weights, biases, dtype=dtype, precision=self._precision)
        return apply_head(features, head)

    @property
    def _precision(self) -> str:
        return "ieee" if self.exact else "tf32"


def apply_head(features: Tensor, head: Head) -> Tensor:  # [S or 1, B, …] -> [S, B, out]
    """In float32 whatever the features are in: rounded logits would tie."""
    weight, bias = head
    x = features.flatten(2).expand(len(weight), -1, -1)
    if x.dtype == torch.float32:
        return torch.baddbmm(bias[:, None], x, weight.transpose(1, 2))
    return torch.bmm(x, weight.to(x.dtype).transpose(1, 2), out_dtype=torch.float32) + bias[:, None]


def stage_kernels(shapes: Sequence[StageShape], device: torch.device) -> StageKernels:
    """The fastest that this machine can run."""
    shapes = tuple(shapes)
    if device.type == "cpu" and (compiled := native_stages(shapes)) is not None:
        return CompiledStages(compiled)
    if device.type == "cuda" and triton_stage.triton_available() and all(map(triton_stage.supports, shapes)):
        return TritonStages(shapes)
    return TorchStages(shapes)
