"""Launches of the Triton kernels: grids, tile sizes, and room for what they write.

Sizes are such that (nearly) no register spills on compute capability 9.0. None depends on the data.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 (the name everybody knows)
from torch import Tensor

from hatdfed.fleets.kernels.torch_stage import StageShape
from hatdfed.fleets.kernels.triton import narrow, wide

MOST_CHANNELS = 64  # more would not fit registers and shared memory
MOST_NARROW = 4  # channels of 4×4 pixels: 64 numbers, one matrix product
_POOL_BLOCK = 32  # windows a tile where nothing is multiplied
_TILES_A_PART = 32  # of 32 windows each: few enough partial sums, enough programs for few servers
_PIXELS_A_PART = 2048
_CHANNELS_AT_ONCE = 32
_ROWS_AT_ONCE = 32  # of patches, where they are transposed
_SERVERS_A_GROUP = 8  # that share loaded images in inference


class Norm(NamedTuple):
    """Batch norm as the way back needs it."""

    mean: Tensor  # [S, F]
    variance: Tensor
    scale: Tensor
    epsilon: float


def infer_stage(shape: StageShape, x: Tensor, weight: Tensor, bias: Tensor, precision: str) -> Tensor:
    """One stage in evaluation mode; `x` and `weight` have the type of the features, `precision` is for float32."""
    servers, batch = len(weight), x.shape[1]
    shared = len(x) == 1
    features = x.new_empty(servers, batch, *shape.pooled, shape.channels_out)
    block = _block(precision) if x.dtype == torch.float32 else _block("")
    tiles = _ceil(batch * _whole_windows(shape), block)
    constants = _constants(shape) | {"SHARED": shared, "BLOCK": block, "PRECISION": precision}
    if shape.channels_in <= MOST_NARROW:
        group = _SERVERS_A_GROUP if shared else 1
        narrow.narrow_infer[(_ceil(servers, group) * tiles,)](
            x, _set_into_4x4(weight), bias, features, servers, batch, GROUP=group, K=_round_up(16 * shape.channels_in),
            **constants, num_warps=4, num_stages=2,
        )  # fmt: skip
    else:
        wide.wide_infer[(servers * tiles,)](
            x, _taps_first(weight), bias, features, batch, CP=_channels(shape), **constants, num_warps=4
        )
    return features


def narrow_forward(
    shape: StageShape, epsilon: float, precision: str, *tensors: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Pooled pixels and where each came from, mean and variance; of x, weight, scale, shift and counts."""
    x, weight, scale, shift, counts = tensors
    servers, batch = x.shape[:2]
    kernels = _set_into_4x4(weight)
    block = _block(precision)
    constants = _constants(shape) | {"K": _round_up(16 * shape.channels_in), "BLOCK": block, "PRECISION": precision}
    moments = _room_for_moments(shape, x, block)
    grid = (servers * moments[0].shape[1],)
    narrow.narrow_statistics[grid](x, kernels, counts, *moments, batch, **constants, num_warps=4)
    mean, variance = _combine(shape, counts, moments, batch, block)
    pooled, which = _room_for_pooled(shape, x)
    narrow.narrow_forward[(servers * _ceil(batch * _whole_windows(shape), block),)](
        x, kernels, counts, mean, variance, scale, shift, pooled, which, batch, epsilon, **constants, num_warps=4
    )
    return pooled, which, mean, variance


def patches_times_gradient(
    shape: StageShape, x: Tensor, gradient: Tensor, which: Tensor, counts: Tensor, precision: str
) -> tuple[Tensor, Tensor]:
    """Products of input patches with what comes back to them, [S, 9 C, F], and the sum of the latter, [S, F]."""
    servers, batch = x.shape[:2]
    block = min(32, _block(precision))
    parts = _ceil(batch * _whole_windows(shape), block * _TILES_A_PART)
    products = x.new_empty(servers, parts, 4, 4, 4, shape.channels_in, shape.channels_out)
    sums = x.new_empty(servers, parts, shape.channels_out)
    rows = min(_ROWS_AT_ONCE, _round_up(16 * shape.channels_in))
    narrow.narrow_gradients[(servers * parts * _ceil(16 * shape.channels_in, rows),)](
        x, gradient, which, counts, products, sums, batch, K=rows, BLOCK=block, PART=_TILES_A_PART,
        PRECISION=precision, **_constants(shape), num_warps=4, num_stages=1,
    )  # fmt: skip
    of_4x4 = products.sum(1)
    taps = [of_4x4[:, p, p // 2 : p // 2 + 3, p % 2 : p % 2 + 3] for p in range(4)]
    return (taps[0] + taps[1] + taps[2] + taps[3]).flatten(1, 3), sums.sum(1)


def patches_times_patches(shape: StageShape, x: Tensor, counts: Tensor, precision: str) -> tuple[Tensor, Tensor]:
    """Products of input patches with each other, [S, 9 C, 9 C], and their sum, [S, 9 C], both in float64.

    It is their difference that matters, so TF32 would be too coarse.
    """
    servers, batch = x.shape[:2]
    block = min(32, _block(precision))
    parts = _ceil(batch * _windows(shape), block * _TILES_A_PART)
    positions = 4 if shape.convolved[0] % 2 or shape.convolved[1] % 2 else 1
    patch = (4, 4, shape.channels_in)
    grams = x.new_empty(servers, parts, positions, *patch, *patch)
    sums = x.new_empty(servers, parts, positions, *patch)
    constants = {name: value for name, value in _constants(shape).items() if name not in ("F", "FP")}
    columns = _round_up(16 * shape.channels_in)
    rows = min(_ROWS_AT_ONCE, columns)
    narrow.narrow_gram[(servers * parts * positions * _ceil(16 * shape.channels_in, rows),)](
        x, counts, grams, sums, batch, POSITIONS=positions, K=rows, KP=columns, BLOCK=block, PART=_TILES_A_PART,
        PRECISION="tf32x3" if precision == "tf32" else precision, **constants, num_warps=4, num_stages=1,
    )  # fmt: skip
    gram, total = (each.sum(1, dtype=torch.float64).expand(-1, 4, *each.shape[3:]) for each in (grams, sums))
    cuts = [(p, slice(p // 2, p // 2 + 3), slice(p % 2, p % 2 + 3)) for p in range(4)]
    products = torch.stack([gram[:, p, down, across, :, down, across] for p, down, across in cuts]).sum(0)
    patches = torch.stack([total[:, p, down, across] for p, down, across in cuts]).sum(0)
    return products.flatten(4).flatten(1, 3), patches.flatten(1)


def wide_forward(
    shape: StageShape, epsilon: float, precision: str, *tensors: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Like `narrow_forward`, and the convolution's output."""
    x, weight, scale, shift, counts = tensors
    servers, batch = x.shape[:2]
    moments = _room_for_moments(shape, x, _block(precision))
    y = _convolve(shape, x, _taps_first(weight), counts, moments, precision)
    mean, variance = _combine(shape, counts, moments, batch, _block(precision))
    pooled, which = _room_for_pooled(shape, x)
    wide.pool_forward[(servers * _ceil(batch * _whole_windows(shape), _POOL_BLOCK),)](
        y, counts, mean, variance, scale, shift, pooled, which, batch, epsilon, **_pool_constants(shape), num_warps=4
    )
    return pooled, which, mean, variance, y


def through_pooling(
    shape: StageShape, gradient: Tensor, which: Tensor, y: Tensor, counts: Tensor, norm: Norm
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of the convolution's output (of real images only), of shift and of scale."""
    servers, batch = y.shape[:2]
    mean, variance, scale, epsilon = norm
    parts = _ceil(batch * _whole_windows(shape), _POOL_BLOCK * _TILES_A_PART)
    partial = y.new_empty(servers, parts, 2, shape.channels_out)
    constants = _pool_constants(shape)
    wide.pool_sums[(servers * parts,)](
        y, gradient, which, counts, mean, variance, partial, batch, epsilon, PART=_TILES_A_PART, **constants,
        num_warps=4, num_stages=1,
    )  # fmt: skip
    sums, to_y = partial.sum(1), torch.empty_like(y)
    wide.pool_backward[(servers * _ceil(batch * _windows(shape), _POOL_BLOCK),)](
        y, gradient, which, counts, mean, variance, scale, sums, to_y, batch, epsilon, **constants, num_warps=4
    )
    return to_y, sums[:, 0], sums[:, 1]


def weight_gradient(shape: StageShape, x: Tensor, to_y: Tensor, counts: Tensor, precision: str) -> Tensor:
    """The gradient of the weights, [S, F, C, 3, 3]."""
    servers, batch = x.shape[:2]
    block = min(32, _block(precision))
    parts = _ceil(batch * shape.convolved[0] * shape.convolved[1], _PIXELS_A_PART)
    products = x.new_empty(servers, parts, 3, 3, shape.channels_in, shape.channels_out)
    # Two warps: with four, Triton takes instructions that want both operands transposed, at a heavy price.
    wide.wide_weights[(servers * parts * 3,)](
        x, to_y, counts, products, batch, RP=_round_up(3 * shape.channels_in), BLOCK=block,
        PART=_PIXELS_A_PART // block, PRECISION=precision, **_constants(shape), num_warps=2, num_stages=1,
    )  # fmt: skip
    return products.sum(1).permute(0, 4, 3, 1, 2)


def input_gradient(shape: StageShape, to_y: Tensor, weight: Tensor, counts: Tensor, precision: str) -> Tensor:
    """The gradient of the input: a convolution of `to_y` with the kernels turned around, filters for channels."""
    turned = _taps_first(weight.flip(3, 4).transpose(1, 2))
    back = StageShape(shape.channels_out, shape.channels_in, *shape.convolved, 2 - shape.padding)
    return _convolve(back, to_y, turned, counts, None, precision)


def _convolve(
    shape: StageShape, x: Tensor, kernels: Tensor, counts: Tensor, moments: tuple[Tensor, ...] | None, precision: str
) -> Tensor:
    """[S, B, h, w, F] with the moments of each tile; without them, 0 for images that are not real."""
    servers, batch = x.shape[:2]
    y = x.new_empty(servers, batch, *shape.convolved, shape.channels_out)
    block = _block(precision)
    wide.wide_convolve[(servers * _ceil(batch * _windows(shape), block),)](
        x, kernels, counts, y, *(moments or (y, y, y)), batch, CP=_channels(shape), BLOCK=block,
        PRECISION=precision, MOMENTS=moments is not None, **_constants(shape), num_warps=4,
    )  # fmt: skip
    return y


def _combine(
    shape: StageShape, counts: Tensor, moments: tuple[Tensor, ...], batch: int, block: int
) -> tuple[Tensor, Tensor]:
    """Mean and variance of each server, [S, F], from the moments of its tiles."""
    mean = moments[0].new_empty(len(counts), shape.channels_out)
    variance = torch.empty_like(mean)
    wide.combine_statistics[(len(counts),)](
        counts, *moments, mean, variance, batch, WINDOWS=_windows(shape), BLOCK=block, CHUNK=32,
        PIXELS=shape.convolved[0] * shape.convolved[1], F=shape.channels_out, FP=_round_up(shape.channels_out),
    )  # fmt: skip
    return mean, variance


def _room_for_moments(shape: StageShape, x: Tensor, block: int) -> tuple[Tensor, ...]:
    """Pixels, means and squared distances of each tile."""
    tiles = (len(x), _ceil(x.shape[1] * _windows(shape), block))
    return x.new_empty(tiles), x.new_empty(*tiles, shape.channels_out), x.new_empty(*tiles, shape.channels_out)


def _room_for_pooled(shape: StageShape, x: Tensor) -> tuple[Tensor, Tensor]:
    """Pooled pixels, and the position that each came from."""
    pooled = x.new_empty(*x.shape[:2], *shape.pooled, shape.channels_out)
    return pooled, torch.empty_like(pooled, dtype=torch.uint8)


def _taps_first(weight: Tensor) -> Tensor:
    return weight.permute(0, 3, 4, 1, 2).contiguous()  # [S, 3, 3, F, C]


def _set_into_4x4(weight: Tensor) -> Tensor:
    """3×3 kernels as weights of the 4×4 pixels below a window, for each of its four positions: [S, 4, F, 4, 4, C]."""
    kernels = weight.permute(0, 1, 3, 4, 2)
    places = [(0, 0, p % 2, 1 - p % 2, p // 2, 1 - p // 2) for p in range(4)]
    return torch.stack([F.pad(kernels, place) for place in places], dim=1)


def _constants(shape: StageShape) -> dict[str, Any]:
    filters = shape.channels_out
    sizes = {"H": shape.height, "W": shape.width, "C": shape.channels_in, "F": filters, "PADDING": shape.padding}
    return sizes | {"FP": _round_up(filters)}


def _pool_constants(shape: StageShape) -> dict[str, Any]:
    height, width = shape.convolved
    filters = shape.channels_out
    return {"HC": height, "WC": width, "F": filters, "FP": _round_up(filters), "BLOCK": _POOL_BLOCK}


def _windows(shape: StageShape) -> int:
    """Windows of an image, halves at an odd edge included."""
    height, width = shape.convolved
    return _ceil(height, 2) * _ceil(width, 2)


def _whole_windows(shape: StageShape) -> int:
    return shape.pooled[0] * shape.pooled[1]


def _channels(shape: StageShape) -> int:
    """Input channels a matrix product."""
    return min(_CHANNELS_AT_ONCE, _round_up(shape.channels_in))


def _block(precision: str) -> int:
    """Windows a tile: as many as registers hold; far fewer where products do not go to tensor cores."""
    return 16 if precision == "ieee" else 64


def _round_up(number: int) -> int:
    """The next power of two that a matrix product takes."""
    return max(16, 1 << (number - 1).bit_length())


def _ceil(number: int, divisor: int) -> int:
    return -(-number // divisor)
