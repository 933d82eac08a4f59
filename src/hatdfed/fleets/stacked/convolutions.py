"""Two-dimensional convolutions of S servers at once, each with its own kernels.

There are four forms. `grouped` is what `torch.vmap` makes of a convolution: one with S groups. `unfolded` copies out
the patches of the images and multiplies matrices, S at once. `each` calls torch's convolution S times, which suits
layers that keep a GPU busy with one server. `channels_last` does the same with images and kernels in the order of
memory that tensor cores read.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 (the usual name)
from torch import Tensor, nn
from torch.nn.grad import conv2d_input, conv2d_weight

Form = Literal["grouped", "unfolded", "each", "channels_last"]
FORMS: tuple[Form, ...] = ("grouped", "unfolded", "each", "channels_last")

_PATCH_NUMBERS = 1 << 29  # of the patches that are copied out at once: 2 GiB


class _Geometry(NamedTuple):
    """How a kernel moves over an image; heights first."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]

    def outputs(self, height: int, width: int) -> tuple[int, int]:
        """Height and width of what comes out."""
        sides = zip((height, width), self.kernel, self.stride, self.padding, strict=True)
        down, across = ((side + 2 * padding - kernel) // stride + 1 for side, kernel, stride, padding in sides)
        return down, across


class StackedConvolution(nn.Conv2d):
    """`nn.Conv2d` that is computed in another form where it is lifted over servers."""

    form: Form

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:  # noqa: A002 (torch's name)
        convolved: Tensor = _Convolution.apply(input, weight, self.stride, self.padding, self.form)  # type: ignore[no-untyped-call]
        return convolved if bias is None else convolved + bias[:, None, None]


def choose_form(module: nn.Module, form: Form) -> None:
    """Have the module's convolutions computed in this form; those of an unusual kind remain as they are."""
    if form == "grouped":
        return
    for layer in module.modules():
        if type(layer) is nn.Conv2d and _is_plain(layer):
            layer.__class__ = StackedConvolution
            layer.form = form  # type: ignore[assignment]


def has_other_forms(module: nn.Module) -> bool:
    """Whether `choose_form` makes a difference."""
    return any(type(layer) is nn.Conv2d and _is_plain(layer) for layer in module.modules())


def _is_plain(layer: nn.Conv2d) -> bool:
    return (
        layer.groups == 1
        and layer.dilation == (1, 1)
        and layer.padding_mode == "zeros"
        and not isinstance(layer.padding, str)
    )


class _Convolution(torch.autograd.Function):
    """`F.conv2d` of one server, which `torch.vmap` makes that of many."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, stride: tuple[int, int], padding: tuple[int, int], form: Form) -> Tensor:
        """Outside `torch.vmap`."""
        return F.conv2d(x, weight, stride=stride, padding=padding)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """For the way back."""
        ctx.save_for_backward(*inputs[:2])
        ctx.geometry = {"stride": inputs[2], "padding": inputs[3]}

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """As torch does it."""
        x, weight = ctx.saved_tensors
        into_x = conv2d_input(x.shape, weight, gradients[0], **ctx.geometry)  # type: ignore[no-untyped-call]
        into_weight = conv2d_weight(x, weight.shape, gradients[0], **ctx.geometry)  # type: ignore[no-untyped-call]
        return into_x, into_weight, None, None, None

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        x: Tensor,
        weight: Tensor,
        stride: tuple[int, int],
        padding: tuple[int, int],
        form: Form,
    ) -> tuple[Tensor, int]:
        """[S, B, C, H, W] or [B, C, H, W] that all share, [S, O, C, h, w] or [O, C, h, w] -> [S, B, O, H', W']."""
        x_dim, weight_dim = in_dims[:2]
        geometry = _Geometry((weight.shape[-2], weight.shape[-1]), stride, padding)
        if weight_dim is None:  # frozen: the same kernels for all servers
            x = x.movedim(x_dim or 0, 0)
            convolved = F.conv2d(x.flatten(0, 1), weight, stride=stride, padding=padding)
            return _in_usual_order(torch.unflatten(convolved, 0, x.shape[:2])), 0
        weight = weight.movedim(weight_dim, 0)
        x = x[None].expand(info.batch_size, *x.shape) if x_dim is None else x.movedim(x_dim, 0)
        if form == "unfolded":
            convolved = _convolve_unfolded(geometry, x, weight)
        else:
            if form == "channels_last":
                x, weight = _put_channels_last(x), _put_channels_last(weight)
            convolved = _convolve_each(geometry, x, weight)
        return _in_usual_order(convolved), 0


def _in_usual_order(images: Tensor) -> Tensor:
    """With channels before places in memory: group norm under `torch.vmap` knows no other order.

    Where a side is 1, several strides mean the same, and `contiguous` would leave the wrong ones.
    """
    usual = torch.empty(images.shape, device="meta").stride()
    return images if images.stride() == usual else images.clone(memory_format=torch.contiguous_format)


def _convolve_each(geometry: _Geometry, x: Tensor, weight: Tensor) -> Tensor:
    pairs = zip(x.unbind(), weight.unbind(), strict=True)
    return torch.stack([F.conv2d(*pair, stride=geometry.stride, padding=geometry.padding) for pair in pairs])


def _put_channels_last(images: Tensor) -> Tensor:  # [S, B, C, H, W]
    """The images or kernels of all servers in one copy."""
    return torch.unflatten(images.flatten(0, 1).contiguous(memory_format=torch.channels_last), 0, images.shape[:2])


def _convolve_unfolded(geometry: _Geometry, x: Tensor, weight: Tensor) -> Tensor:
    down, across = geometry.outputs(x.shape[-2], x.shape[-1])
    at_once = max(1, _PATCH_NUMBERS // max(1, x.shape[1] * down * across * weight[0, 0].numel()))
    pairs = zip(torch.split(x, at_once), torch.split(weight, at_once), strict=True)
    parts = [_Unfolded.apply(geometry, *pair) for pair in pairs]  # type: ignore[no-untyped-call]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


class _Unfolded(torch.autograd.Function):
    """Convolutions as products of matrices; patches are copied out again on the way back, not kept."""

    @staticmethod
    def forward(ctx: Any, geometry: _Geometry, x: Tensor, weight: Tensor) -> Tensor:
        """[S, B, C, H, W], [S, O, C, h, w] -> [S, B, O, H', W']."""
        ctx.geometry = geometry
        ctx.save_for_backward(x, weight)
        convolved = torch.bmm(_copy_patches(geometry, x), _as_matrix(weight).transpose(1, 2))
        convolved = convolved.view(*x.shape[:2], *geometry.outputs(x.shape[-2], x.shape[-1]), -1)
        return convolved.permute(0, 1, 4, 2, 3)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Of the images, if it is asked for, and of the kernels."""
        x, weight = ctx.saved_tensors
        geometry: _Geometry = ctx.geometry
        arrived = gradients[0].permute(0, 1, 3, 4, 2).flatten(1, 3)  # [S, B·H'·W', O]
        into_x = into_weight = None
        if ctx.needs_input_grad[2]:
            product = torch.bmm(arrived.transpose(1, 2), _copy_patches(geometry, x))
            servers, outputs, channels, height, width = weight.shape
            into_weight = product.view(servers, outputs, height, width, channels).permute(0, 1, 4, 2, 3)
        if ctx.needs_input_grad[1]:
            into_x = _add_patches(geometry, torch.bmm(arrived, _as_matrix(weight)), x)
        return None, into_x, into_weight


def _as_matrix(weight: Tensor) -> Tensor:
    """[S, O, C, h, w] -> [S, O, h·w·C]."""
    return weight.permute(0, 1, 3, 4, 2).flatten(2)


def _copy_patches(geometry: _Geometry, x: Tensor) -> Tensor:
    """[S, B, C, H, W] -> [S, B·H'·W', h·w·C], what the kernel sees at each place."""
    (height, width), (down, across) = geometry.kernel, geometry.padding
    padded = F.pad(x.permute(0, 1, 3, 4, 2), (0, 0, across, across, down, down))
    seen = padded.unfold(2, height, geometry.stride[0]).unfold(3, width, geometry.stride[1])  # [S, B, H', W', C, h, w]
    return seen.permute(0, 1, 2, 3, 5, 6, 4).flatten(4).flatten(1, 3)


def _add_patches(geometry: _Geometry, patches: Tensor, x: Tensor) -> Tensor:
    """The sum of the patches where they came from, in the shape of the images `x`."""
    (height, width), (down, across) = geometry.kernel, geometry.padding
    servers, batch, channels, rows, columns = x.shape
    outputs = geometry.outputs(rows, columns)
    parts = patches.view(servers, batch, *outputs, height, width, channels)
    total = patches.new_zeros(servers, batch, rows + 2 * down, columns + 2 * across, channels)
    ends = [stride * (count - 1) + 1 for stride, count in zip(geometry.stride, outputs, strict=True)]
    for i in range(height):
        for j in range(width):
            place = (slice(i, i + ends[0], geometry.stride[0]), slice(j, j + ends[1], geometry.stride[1]))
            total[:, :, place[0], place[1]] += parts[..., i, j, :]
    inner = total[:, :, down : down + rows, across : across + columns]
    return inner.permute(0, 1, 4, 2, 3)
