"""The stages on an NVIDIA GPU, in Triton: what `stage` does, with a fraction of its memory traffic.

Training is float32 in memory with TF32 products, inference bfloat16; both add in float32. With few input channels
(`narrow`) the convolution's output is never stored: it is recomputed, and gradients follow from products of input
patches with what comes back and with each other. Otherwise (`wide`) it is stored once. Nothing waits for the GPU, no
shape depends on data and no sum on chance, so calls can go into a CUDA graph and repeat bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hatdfed.fleets.kernels.torch_stage import StageOutput, StageShape
from hatdfed.fleets.kernels.triton import launch


def triton_available() -> bool:
    """Whether Triton can be imported; whether there is a GPU for it is the caller's question."""
    return find_spec("triton") is not None


def supports(shape: StageShape) -> bool:
    """Whether the kernels take this stage."""
    if shape.padding not in (0, 1):
        return False
    return max(shape.channels_in, shape.channels_out) <= launch.MOST_CHANNELS and min(shape.pooled) > 0


def train(
    shape: StageShape,
    x: Tensor,
    weight: Tensor,
    scale: Tensor,
    shift: Tensor,
    counts: Tensor,
    epsilon: float,
    *,
    precision: str = "tf32",
) -> StageOutput:
    """See `stage.train_stage`; `precision` is that of matrix products, "tf32" or "ieee" (float32, slow)."""
    narrow = shape.channels_in <= launch.MOST_NARROW and not x.requires_grad
    stage = _NarrowStage if narrow else _WideStage
    tensors = [tensor.contiguous() for tensor in (x, weight, scale, shift, counts)]
    return StageOutput(*stage.apply(shape, epsilon, precision, *tensors))  # type: ignore[no-untyped-call]


def infer(
    shapes: Sequence[StageShape],
    x: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    *,
    dtype: torch.dtype = torch.bfloat16,
    precision: str = "ieee",
) -> Tensor:
    """See `stage.infer_stages`; with float32, `precision` is that of matrix products, "tf32" or "ieee" (slow)."""
    x = x.to(dtype)
    for shape, weight, bias in zip(shapes, weights, biases, strict=True):
        x = launch.infer_stage(shape, x.contiguous(), weight.to(dtype), bias.float().contiguous(), precision)
    return x


class _NarrowStage(torch.autograd.Function):
    """A stage with few input channels and no gradient for its input."""

    @staticmethod
    def forward(ctx: Any, shape: StageShape, epsilon: float, precision: str, *tensors: Tensor) -> tuple[Tensor, ...]:
        x, weight, scale, _, counts = tensors
        pooled, which, mean, variance = launch.narrow_forward(shape, epsilon, precision, *tensors)
        ctx.mark_non_differentiable(mean, variance)
        ctx.save_for_backward(x, weight, scale, counts, mean, variance, which)
        ctx.shape, ctx.epsilon, ctx.precision = shape, epsilon, precision
        return pooled, mean, variance

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        shape = ctx.shape
        x, weight, scale, counts, mean, variance, which = ctx.saved_tensors
        came, to_shift = launch.patches_times_gradient(shape, x, gradient.contiguous(), which, counts, ctx.precision)
        gram, sums = launch.patches_times_patches(shape, x, counts, ctx.precision)
        pixels = (counts.clamp(min=1) * shape.convolved[0] * shape.convolved[1])[:, None].double()
        kernels = weight.permute(0, 3, 4, 2, 1).flatten(1, 3)  # [S, 9 C, F], as patches have it
        steep = torch.rsqrt(variance + ctx.epsilon)
        # Batch norm's gradient is what came back, less its mean, less the normed value times a mean product; that of
        # the weights is the product of patches with each of the three. And the normed value is linear in patches.
        to_scale = steep * ((kernels * came).sum(1) - mean * to_shift)
        covariance = (gram - sums[:, :, None] * sums[:, None, :] / pixels[:, :, None]).float()
        of_mean = (sums[:, :, None] * (to_shift / pixels)[:, None, :]).float()
        of_normed = torch.bmm(covariance, kernels) * (steep * to_scale / pixels).float()[:, None, :]
        to_kernels = (scale * steep)[:, None, :] * (came - of_mean - of_normed)
        to_weight = to_kernels.unflatten(1, (3, 3, shape.channels_in)).permute(0, 4, 3, 1, 2)
        return None, None, None, None, to_weight, to_scale, to_shift, None


class _WideStage(torch.autograd.Function):
    """A stage with any number of input channels."""

    @staticmethod
    def forward(ctx: Any, shape: StageShape, epsilon: float, precision: str, *tensors: Tensor) -> tuple[Tensor, ...]:
        x, weight, scale, _, counts = tensors
        pooled, which, mean, variance, y = launch.wide_forward(shape, epsilon, precision, *tensors)
        ctx.mark_non_differentiable(mean, variance)
        ctx.save_for_backward(x, weight, counts, which, y, mean, variance, scale)
        ctx.shape, ctx.epsilon, ctx.precision = shape, epsilon, precision
        return pooled, mean, variance

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, counts, which, y, mean, variance, scale = ctx.saved_tensors
        norm = launch.Norm(mean, variance, scale, ctx.epsilon)
        to_y, to_shift, to_scale = launch.through_pooling(ctx.shape, gradient.contiguous(), which, y, counts, norm)
        to_weight = launch.weight_gradient(ctx.shape, x, to_y, counts, ctx.precision)
        to_x = None
        if ctx.needs_input_grad[3]:
            to_x = launch.input_gradient(ctx.shape, to_y, weight, counts, ctx.precision)
        return None, None, None, to_x, to_weight, to_scale, to_shift, None
