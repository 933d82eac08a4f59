"""The stages on an NVIDIA GPU, in Triton: what `stage` does, for a tenth of its memory traffic.

Training is float32 in memory with TF32 products, inference bfloat16; both add in float32. With few input channels
(`narrow`) the convolution's output is never stored: it is recomputed, and its gradients follow from products of input
patches with what comes back and with each other. Otherwise (`wide`) it is stored once. Nothing waits for the GPU, no
shape depends on data and no sum on chance, so the calls can go into a CUDA graph and repeat bit for bit; a server's
numbers do not depend on how many others are stacked with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (the name everybody knows)
from torch import Tensor
from torch.autograd.function import once_differentiable

from hatdfed.learning.stacked import triton_narrow as narrow
from hatdfed.learning.stacked import triton_wide as wide
from hatdfed.learning.stacked.stage import StageOutput, StageShape

MOST_CHANNELS = 64  # more would not fit a multiprocessor's registers and shared memory at these tile sizes
_MOST_NARROW = 4  # channels of 4×4 pixels: 64 numbers, one matrix product
_TILES_A_PART = 32  # of 32 windows each: few enough partial sums, enough programs for few servers
_PIXELS_A_PART = 2048
_CHANNELS_AT_ONCE = 32
_ROWS_AT_ONCE = 32  # of patches, where they are transposed
_SERVERS_A_GROUP = 8  # that share loaded images in inference


def triton_available() -> bool:
    """Whether Triton can be imported; whether there is a GPU for it is the caller's question."""
    return find_spec("triton") is not None


def supports(shape: StageShape) -> bool:
    """Whether the kernels take this stage."""
    return max(shape.channels_in, shape.channels_out) <= MOST_CHANNELS and min(shape.pooled) > 0


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
    """See `stage.train_stage`; `precision` of matrix products: "tf32", "tf32x3" (nearly float32) or "ieee" (slow)."""
    stage = _WideStage if shape.channels_in > _MOST_NARROW or x.requires_grad else _NarrowStage
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
    """See `stage.infer_stages`; `precision` matters for float32 only."""
    x = x.to(dtype)
    for shape, weight, bias in zip(shapes, weights, biases, strict=True):
        x = _infer_stage(shape, x.contiguous(), weight.to(dtype), bias.float().contiguous(), precision)
    return x


def _infer_stage(shape: StageShape, x: Tensor, weight: Tensor, bias: Tensor, precision: str) -> Tensor:
    servers, batch = len(weight), x.shape[1]
    shared = len(x) == 1
    features = x.new_empty(servers, batch, *shape.pooled, shape.channels_out)
    block = _block(precision if x.dtype == torch.float32 else "tf32")
    tiles = _ceil(batch * shape.pooled[0] * shape.pooled[1], block)
    constants = _constants(shape) | {"SHARED": shared, "BLOCK": block, "PRECISION": precision}
    if shape.channels_in <= _MOST_NARROW:
        group = _SERVERS_A_GROUP if shared else 1
        narrow.narrow_infer[(_ceil(servers, group) * tiles,)](
            x, _set_into_4x4(weight), bias, features, servers, batch, GROUP=group, K=_rounded(16 * shape.channels_in),
            **constants, num_warps=4, num_stages=2,
        )  # fmt: skip
    else:
        kernels = weight.permute(0, 3, 4, 1, 2).contiguous()  # [S, 3, 3, F, C]
        wide.wide_infer[(servers * tiles,)](
            x,
            kernels,
            bias,
            features,
            batch,
            CP=min(_CHANNELS_AT_ONCE, _rounded(shape.channels_in)),
            **constants,
            num_warps=4,
        )
    return features


class _NarrowStage(torch.autograd.Function):
    """A stage with few input channels and no gradient for its input."""

    @staticmethod
    def forward(
        ctx: Any,
        shape: StageShape,
        epsilon: float,
        precision: str,
        x: Tensor,
        weight: Tensor,
        scale: Tensor,
        shift: Tensor,
        counts: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        servers, batch = x.shape[:2]
        windows = _set_into_4x4(weight)
        block = _block(precision)
        constants = _constants(shape) | {"K": _rounded(16 * shape.channels_in), "BLOCK": block, "PRECISION": precision}
        tiles = _ceil(batch * _windows(shape), block)
        moments = _moments_of_tiles(x, servers, tiles, shape.channels_out)
        narrow.narrow_statistics[(servers * tiles,)](x, windows, counts, *moments, batch, **constants)
        mean, variance = _combine(shape, counts, moments, batch, block)
        pooled, which = _pooled(shape, x)
        tiles = _ceil(batch * shape.pooled[0] * shape.pooled[1], block)
        narrow.narrow_forward[(servers * tiles,)](
            x, windows, counts, mean, variance, scale, shift, pooled, which, batch, epsilon, **constants
        )
        ctx.mark_non_differentiable(mean, variance)
        ctx.save_for_backward(x, weight, scale, counts, mean, variance, which)
        ctx.shape, ctx.epsilon, ctx.precision = shape, epsilon, precision
        return pooled, mean, variance

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        shape, epsilon = ctx.shape, ctx.epsilon
        x, weight, scale, counts, mean, variance, which = ctx.saved_tensors
        returned, to_shift = _patches_times_gradient(shape, x, gradient.contiguous(), which, counts, ctx.precision)
        gram, sums = _patches_times_patches(shape, x, counts, ctx.precision)
        pixels = (counts.clamp(min=1) * shape.convolved[0] * shape.convolved[1])[:, None].double()
        kernels = weight.permute(0, 3, 4, 2, 1).flatten(1, 3)  # [S, 9 C, F], as patches have it
        steep = torch.rsqrt(variance + epsilon)
        # Batch norm's gradient is what came back less its mean less the normed value times a mean product, so the
        # weights' gradient is three products of patches with each of these; the normed value is linear in patches.
        to_scale = steep * ((kernels * returned).sum(1) - mean * to_shift)
        apart = (gram - sums[:, :, None] * sums[:, None, :] / pixels[:, :, None]).float()
        of_normed = torch.bmm(apart, kernels) * (steep * to_scale / pixels).float()[:, None, :]
        of_ones = (sums[:, :, None] * (to_shift / pixels)[:, None, :]).float()
        to_kernels = (scale * steep)[:, None, :] * (returned - of_ones - of_normed)
        to_weight = to_kernels.unflatten(1, (3, 3, shape.channels_in)).permute(0, 4, 3, 1, 2)
        return None, None, None, None, to_weight, to_scale, to_shift, None


def _patches_times_gradient(
    shape: StageShape, x: Tensor, gradient: Tensor, which: Tensor, counts: Tensor, precision: str
) -> tuple[Tensor, Tensor]:
    """Products of input patches with what comes back to them, [S, 9 C, F], and the sum of the latter, [S, F]."""
    servers, batch = x.shape[:2]
    block = min(32, _block(precision))
    parts = _ceil(batch * shape.pooled[0] * shape.pooled[1], block * _TILES_A_PART)
    products = x.new_empty(servers, parts, 4, 4, 4, shape.channels_in, shape.channels_out)
    sums = x.new_empty(servers, parts, shape.channels_out)
    rows = min(_ROWS_AT_ONCE, _rounded(16 * shape.channels_in))
    narrow.narrow_gradients[(servers * parts * _ceil(16 * shape.channels_in, rows),)](
        x, gradient, which, counts, products, sums, batch, K=rows, BLOCK=block, PART=_TILES_A_PART,
        PRECISION=precision, **_constants(shape), num_warps=4, num_stages=1,
    )  # fmt: skip
    at = products.sum(1)
    taps = [at[:, p, p // 2 : p // 2 + 3, p % 2 : p % 2 + 3] for p in range(4)]
    return (taps[0] + taps[1] + taps[2] + taps[3]).flatten(1, 3), sums.sum(1)


def _patches_times_patches(shape: StageShape, x: Tensor, counts: Tensor, precision: str) -> tuple[Tensor, Tensor]:
    """Products of input patches with each other, [S, 9 C, 9 C], and their sum, [S, 9 C], both in float64.

    Their difference matters, so TF32 alone would be too coarse.
    """
    servers, batch = x.shape[:2]
    block = min(32, _block(precision))
    parts = _ceil(batch * _windows(shape), block * _TILES_A_PART)
    positions = 4 if shape.convolved[0] % 2 or shape.convolved[1] % 2 else 1
    patch = (4, 4, shape.channels_in)
    grams, sums = x.new_empty(servers, parts, positions, *patch, *patch), x.new_empty(servers, parts, positions, *patch)
    constants = {name: value for name, value in _constants(shape).items() if name not in ("F", "FP")}
    columns = _rounded(16 * shape.channels_in)
    rows = min(_ROWS_AT_ONCE, columns)
    narrow.narrow_gram[(servers * parts * positions * _ceil(16 * shape.channels_in, rows),)](
        x, counts, grams, sums, batch, POSITIONS=positions, K=rows, KP=columns, BLOCK=block, PART=_TILES_A_PART,
        PRECISION="tf32x3" if precision == "tf32" else precision, **constants, num_warps=4, num_stages=1,
    )  # fmt: skip
    gram, total = (each.sum(1, dtype=torch.float64).expand(-1, 4, *each.shape[3:]) for each in (grams, sums))
    cuts = [(p, slice(p // 2, p // 2 + 3), slice(p % 2, p % 2 + 3)) for p in range(4)]
    gram = sum(gram[:, p, down, across, :, down, across].flatten(1, 3).flatten(2) for p, down, across in cuts)
    return gram, sum(total[:, p, down, across].flatten(1) for p, down, across in cuts)


class _WideStage(torch.autograd.Function):
    """A stage with any number of input channels."""

    @staticmethod
    def forward(
        ctx: Any,
        shape: StageShape,
        epsilon: float,
        precision: str,
        x: Tensor,
        weight: Tensor,
        scale: Tensor,
        shift: Tensor,
        counts: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        servers, batch = x.shape[:2]
        block = _block(precision)
        tiles = _ceil(batch * _windows(shape), block)
        moments = _moments_of_tiles(x, servers, tiles, shape.channels_out)
        kernels = weight.permute(0, 3, 4, 1, 2).contiguous()  # [S, 3, 3, F, C]
        y = _convolve(shape, x, kernels, counts, moments, precision)
        mean, variance = _combine(shape, counts, moments, batch, block)
        pooled, which = _pooled(shape, x)
        tiles = _ceil(batch * shape.pooled[0] * shape.pooled[1], _POOL_BLOCK)
        wide.pool_forward[(servers * tiles,)](
            y, counts, mean, variance, scale, shift, pooled, which, batch, epsilon,
            **_pool_constants(shape), num_warps=4,
        )  # fmt: skip
        ctx.mark_non_differentiable(mean, variance)
        ctx.save_for_backward(x, weight, scale, counts, mean, variance, which, y)
        ctx.shape, ctx.epsilon, ctx.precision = shape, epsilon, precision
        return pooled, mean, variance

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        shape, precision = ctx.shape, ctx.precision
        x, weight, scale, counts, mean, variance, which, y = ctx.saved_tensors
        backward, sums = _through_pooling(
            shape, gradient.contiguous(), which, y, counts, mean, variance, scale, ctx.epsilon
        )
        to_weight = _to_weight(shape, x, backward, counts, precision)
        to_x = None
        if ctx.needs_input_grad[3]:
            turned = weight.flip(3, 4).permute(0, 3, 4, 2, 1).contiguous()  # [S, 3, 3, C, F]
            height, width = shape.convolved
            mirrored = StageShape(shape.channels_out, shape.channels_in, height, width, 2 - shape.padding)
            to_x = _convolve(mirrored, backward, turned, counts, None, precision)
        return None, None, None, to_x, to_weight, sums[:, 1], sums[:, 0], None


_POOL_BLOCK = 32


def _convolve(
    shape: StageShape, x: Tensor, kernels: Tensor, counts: Tensor, moments: tuple[Tensor, ...] | None, precision: str
) -> Tensor:
    """[S, B, h, w, F] with the moments of each tile; without them, 0 for images that are not real."""
    servers, batch = x.shape[:2]
    y = x.new_empty(servers, batch, *shape.convolved, shape.channels_out)
    block = _block(precision)
    wide.wide_convolve[(servers * _ceil(batch * _windows(shape), block),)](
        x, kernels, counts, y, *(moments or (y, y, y)), batch, CP=min(_CHANNELS_AT_ONCE, _rounded(shape.channels_in)), BLOCK=block,
        PRECISION=precision, MOMENTS=moments is not None, **_constants(shape), num_warps=4,
    )  # fmt: skip
    return y


def _through_pooling(
    shape: StageShape, gradient: Tensor, which: Tensor, y: Tensor, *norm: Any
) -> tuple[Tensor, Tensor]:
    """The gradient of the convolution's output, and those of shift and scale, [S, 2, F]."""
    counts, mean, variance, scale, epsilon = norm
    servers, batch = y.shape[:2]
    parts = _ceil(batch * shape.pooled[0] * shape.pooled[1], _POOL_BLOCK * _TILES_A_PART)
    partial = y.new_empty(servers, parts, 2, shape.channels_out)
    constants = _pool_constants(shape)
    wide.pool_sums[(servers * parts,)](
        y, gradient, which, counts, mean, variance, partial, batch, epsilon, PART=_TILES_A_PART, **constants
    )
    sums, backward = partial.sum(1), torch.empty_like(y)
    wide.pool_backward[(servers * _ceil(batch * _windows(shape), _POOL_BLOCK),)](
        y, gradient, which, counts, mean, variance, scale, sums, backward, batch, epsilon, **constants
    )
    return backward, sums


def _to_weight(shape: StageShape, x: Tensor, backward: Tensor, counts: Tensor, precision: str) -> Tensor:
    servers, batch = x.shape[:2]
    block = 32 if precision != "ieee" else 16
    part = _PIXELS_A_PART // block
    parts = _ceil(batch * shape.convolved[0] * shape.convolved[1], _PIXELS_A_PART)
    products = x.new_empty(servers, parts, 3, 3, shape.channels_in, shape.channels_out)
    wide.wide_weights[(servers * parts * 3,)](
        x, backward, counts, products, batch, RP=_rounded(3 * shape.channels_in), BLOCK=block, PART=part,
        PRECISION=precision, **_constants(shape), num_warps=2, num_stages=1,
    )  # fmt: skip
    return products.sum(1).permute(0, 4, 3, 1, 2)


def _combine(
    shape: StageShape, counts: Tensor, moments: tuple[Tensor, ...], batch: int, block: int
) -> tuple[Tensor, Tensor]:
    """Mean and variance of each server, [S, F], from the moments of its tiles."""
    mean = moments[0].new_empty(len(counts), shape.channels_out)
    variance = torch.empty_like(mean)
    wide.combine_statistics[(len(counts),)](
        counts, *moments, mean, variance, batch, WINDOWS=_windows(shape), BLOCK=block, CHUNK=32,
        PIXELS=shape.convolved[0] * shape.convolved[1], F=shape.channels_out, FP=_rounded(shape.channels_out),
    )  # fmt: skip
    return mean, variance


def _moments_of_tiles(like: Tensor, servers: int, tiles: int, filters: int) -> tuple[Tensor, ...]:
    """Room for pixels, means and squared distances."""
    return like.new_empty(servers, tiles), *(like.new_empty(servers, tiles, filters) for _ in range(2))


def _pooled(shape: StageShape, x: Tensor) -> tuple[Tensor, Tensor]:
    """Room for pooled pixels and for the position each came from."""
    pooled = x.new_empty(*x.shape[:2], *shape.pooled, shape.channels_out)
    return pooled, torch.empty_like(pooled, dtype=torch.uint8)


def _set_into_4x4(weight: Tensor) -> Tensor:
    """3×3 kernels as weights of the 4×4 pixels below a window, for each of its four positions: [S, 4, F, 4, 4, C]."""
    kernels = weight.permute(0, 1, 3, 4, 2)
    places = [(0, 0, p % 2, 1 - p % 2, p // 2, 1 - p // 2) for p in range(4)]
    return torch.stack([F.pad(kernels, place) for place in places], dim=1)


def _constants(shape: StageShape) -> dict[str, Any]:
    filters = shape.channels_out
    sizes = {"H": shape.height, "W": shape.width, "C": shape.channels_in, "F": filters, "PADDING": shape.padding}
    return sizes | {"FP": _rounded(filters)}


def _pool_constants(shape: StageShape) -> dict[str, Any]:
    height, width = shape.convolved
    filters = shape.channels_out
    return {"HC": height, "WC": width, "F": filters, "FP": _rounded(filters), "BLOCK": _POOL_BLOCK}


def _windows(shape: StageShape) -> int:
    """Windows of an image, halves at an odd edge included."""
    height, width = shape.convolved
    return _ceil(height, 2) * _ceil(width, 2)


def _block(precision: str) -> int:
    """Windows a tile: as many as registers hold; far fewer where products do not go to tensor cores."""
    return 16 if precision == "ieee" else 64


def _rounded(number: int) -> int:
    """The next power of two that a matrix product takes."""
    return max(16, 1 << (number - 1).bit_length())


def _ceil(number: int, divisor: int) -> int:
    return -(-number // divisor)
