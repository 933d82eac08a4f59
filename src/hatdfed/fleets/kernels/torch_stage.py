"""The unit that convolutional networks are made of here: 3×3 convolution, batch norm, ReLU, 2×2 max pooling.

Every function takes S models at once: images are [S, B, H, W, C] (channels last), of which the first `counts[s]` of
server s are real and the rest padding. A convolution's bias in front of batch norm cancels, so it is not an argument;
whoever keeps running statistics adds it to the mean. This is the plain form in torch operations, the reference for
`native` (C, for CPUs) and `triton_stage` (for GPUs).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 (the name everybody knows)
from torch import Tensor


class StageShape(NamedTuple):
    """One stage; the convolution has stride 1, pooling drops an odd last row or column."""

    channels_in: int
    channels_out: int
    height: int  # of the images that come in
    width: int
    padding: int

    @property
    def convolved(self) -> tuple[int, int]:
        """Height and width after the convolution."""
        return self.height + 2 * self.padding - 2, self.width + 2 * self.padding - 2

    @property
    def pooled(self) -> tuple[int, int]:
        """Height and width after pooling."""
        height, width = self.convolved
        return height // 2, width // 2


class StageOutput(NamedTuple):
    """What training needs of a stage."""

    pooled: Tensor  # [S, B, h, w, C], 0 where padding
    mean: Tensor  # [S, C] of the convolution's output over real images; not differentiable
    variance: Tensor  # [S, C] likewise, biased


def train_stage(
    shape: StageShape, x: Tensor, weight: Tensor, scale: Tensor, shift: Tensor, counts: Tensor, epsilon: float
) -> StageOutput:  # [S, B, H, W, C], [S, O, C, 3, 3], [S, O], [S, O], [S]
    """One stage in training mode: batch norm uses the statistics of this batch, of real images only."""
    convolved = _convolve(shape, x, weight)  # [S, B, h, w, O]
    real = (torch.arange(x.shape[1], device=x.device) < counts[:, None])[:, :, None, None, None]
    pixels = (counts.clamp(min=1) * convolved.shape[2] * convolved.shape[3])[:, None]
    mean = torch.where(real, convolved, 0.0).sum(dim=(1, 2, 3)) / pixels
    centred = torch.where(real, convolved - _per_channel(mean), 0.0)
    variance = centred.square().sum(dim=(1, 2, 3)) / pixels
    normed = centred * _per_channel(scale * torch.rsqrt(variance + epsilon)) + _per_channel(shift)
    pooled = torch.where(real, _pool(normed).relu(), 0.0)
    return StageOutput(pooled, mean.detach(), variance.detach())


def infer_stages(shapes: list[StageShape], x: Tensor, weights: list[Tensor], biases: list[Tensor]) -> Tensor:
    """All stages in evaluation mode, batch norm folded into weights and biases; -> [S, B, h, w, C] features.

    `x` may have 1 in place of S: images that all models share.
    """
    for shape, weight, bias in zip(shapes, weights, biases, strict=True):
        x = x.expand(len(weight), *x.shape[1:])
        x = _pool(_convolve(shape, x, weight) + _per_channel(bias)).relu()
    return x


def _convolve(shape: StageShape, x: Tensor, weight: Tensor) -> Tensor:
    """S convolutions as one with S groups."""
    servers, batch = x.shape[:2]
    images = x.permute(1, 0, 4, 2, 3).reshape(batch, servers * shape.channels_in, shape.height, shape.width)
    kernels = weight.reshape(servers * shape.channels_out, shape.channels_in, 3, 3)
    convolved = F.conv2d(images, kernels, padding=shape.padding, groups=servers)
    return convolved.view(batch, servers, shape.channels_out, *shape.convolved).permute(1, 0, 3, 4, 2)


def _pool(x: Tensor) -> Tensor:
    """The largest of every 2×2 pixels; of equal ones the first in reading order gets the gradient."""
    servers, batch = x.shape[:2]
    pooled = F.max_pool2d(x.reshape(servers * batch, *x.shape[2:]).permute(0, 3, 1, 2), 2)
    return pooled.permute(0, 2, 3, 1).reshape(servers, batch, *pooled.shape[2:], x.shape[4])


def _per_channel(values: Tensor) -> Tensor:
    return values[:, None, None, None, :]
