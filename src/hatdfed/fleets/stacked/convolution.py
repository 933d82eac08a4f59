"""Convolutions of many servers at once as matrix products.

`torch.vmap` makes one convolution in S groups of S convolutions, for which libraries have slow kernels. Here the
patches that a kernel sees are copied side by side, and one batched product multiplies them with the kernels of all
servers. Patches take as many times the memory of the images as a kernel has places, so they are made for some of the
servers at a time, and again on the way back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (the name everybody knows)
from torch import Tensor, nn

_PATCH_BYTES = 1 << 31  # of the patches that are made at once


class ProductConvolution(nn.Conv2d):
    """The same layer, which computes by products where `torch.vmap` lifts both images and kernels."""

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] -> [B, O, H', W']."""
        found: Tensor = _LiftedConvolution.apply(x, self.weight, self.padding)  # type: ignore[no-untyped-call]
        return found if self.bias is None else found + self.bias[:, None, None]


def use_products(module: nn.Module) -> None:
    """Make the module's own convolutions `ProductConvolution`, in place, where they are of the simple kind."""
    for layer in module.modules():
        if type(layer) is nn.Conv2d and _is_simple(layer):
            layer.__class__ = ProductConvolution


def _is_simple(layer: nn.Conv2d) -> bool:
    """Stride 1 and padding with zeros that is narrower than the kernel."""
    return (
        layer.stride == layer.dilation == (1, 1)
        and layer.groups == 1
        and layer.padding_mode == "zeros"
        and not isinstance(layer.padding, str)
        and all(pad < side for pad, side in zip(layer.padding, layer.kernel_size, strict=True))
    )


class _LiftedConvolution(torch.autograd.Function):
    """A convolution with a rule for `torch.vmap`."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, padding: tuple[int, int]) -> Tensor:
        return F.conv2d(x, weight, padding=padding)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, tuple[int, int]], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:2])
        ctx.padding = inputs[2]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, weight = ctx.saved_tensors
        grad_x, grad_weight = _find_gradients(x[None], weight[None], gradient[None], ctx.padding, ctx.needs_input_grad)
        return None if grad_x is None else grad_x[0], None if grad_weight is None else grad_weight[0], None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, int | None, None], x: Tensor, weight: Tensor, padding: tuple[int, int]
    ) -> tuple[Tensor, int]:
        x_dim, weight_dim, _ = in_dims
        if weight_dim is None:  # the same kernels for all: one batch
            stacked = x.movedim(x_dim or 0, 0)
            found = F.conv2d(stacked.flatten(0, 1), weight, padding=padding)
            return found.view(*stacked.shape[:2], *found.shape[1:]), 0
        weights = weight.movedim(weight_dim, 0)
        if x_dim is None:  # the same images for all: one convolution with many channels
            found = F.conv2d(x, weights.flatten(0, 1), padding=padding)
            return found.view(len(found), *weights.shape[:2], *found.shape[2:]), 1
        products: Tensor = _StackedConvolution.apply(x.movedim(x_dim, 0), weights, padding)  # type: ignore[no-untyped-call]
        return products, 0


class _StackedConvolution(torch.autograd.Function):
    """S convolutions of S batches."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, padding: tuple[int, int]) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.padding = padding
        return convolve(x, weight, padding)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, weight = ctx.saved_tensors
        return *_find_gradients(x, weight, gradient, ctx.padding, ctx.needs_input_grad), None


def convolve(x: Tensor, weight: Tensor, padding: tuple[int, int]) -> Tensor:
    """[S, B, C, H, W] and [S, O, C, h, w] -> [S, B, O, H', W'], with stride 1."""
    height, width = (
        side + 2 * pad - kernel + 1 for side, pad, kernel in zip(x.shape[3:], padding, weight.shape[3:], strict=True)
    )
    found = x.new_empty(len(x), x.shape[1], weight.shape[1], height, width)
    for some in _parts(x, weight.shape, height * width):
        products = torch.bmm(weight[some].flatten(2), _patches(x[some], weight.shape, padding))
        found[some] = products.view(*products.shape[:2], x.shape[1], height, width).transpose(1, 2)
    return found


def _find_gradients(
    x: Tensor, weight: Tensor, gradient: Tensor, padding: tuple[int, int], wanted: Sequence[bool]
) -> tuple[Tensor | None, Tensor | None]:
    """Of images and of kernels, where they are wanted; images get a convolution with the kernels turned around."""
    margin = (weight.shape[3] - 1 - padding[0], weight.shape[4] - 1 - padding[1])
    grad_x = convolve(gradient, weight.flip(3, 4).transpose(1, 2), margin) if wanted[0] else None
    if not wanted[1]:
        return grad_x, None
    grad_weight = torch.empty_like(weight)
    for some in _parts(x, weight.shape, gradient.shape[3] * gradient.shape[4]):
        products = torch.bmm(
            gradient[some].transpose(1, 2).flatten(2), _patches(x[some], weight.shape, padding).transpose(1, 2)
        )
        grad_weight[some] = products.view_as(grad_weight[some])
    return grad_x, grad_weight


def _patches(x: Tensor, kernel: torch.Size, padding: tuple[int, int]) -> Tensor:
    """[S, B, C, H, W] -> [S, C·h·w, B·H'·W'], for kernels [S, O, C, h, w]."""
    padded = F.pad(x, (padding[1], padding[1], padding[0], padding[0]))
    windows = padded.unfold(3, kernel[3], 1).unfold(4, kernel[4], 1)  # [S, B, C, H', W', h, w]
    return windows.permute(0, 2, 5, 6, 1, 3, 4).flatten(4).flatten(1, 3)


def _parts(x: Tensor, kernel: torch.Size, places: int) -> list[slice]:
    """Servers whose patches fit together."""
    one = x.element_size() * x.shape[1] * places * kernel[2] * kernel[3] * kernel[4]
    at_once = max(1, _PATCH_BYTES // max(1, one))
    return [slice(first, first + at_once) for first in range(0, len(x), at_once)]
