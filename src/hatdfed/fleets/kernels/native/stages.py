"""The two functions of `stage`, `train_stage` and `infer_stages`, in C; see `build` and `jobs`.

Results do not depend on the number of threads, nor a server's on which other servers are computed along with it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 (the name everybody knows)
from torch import Tensor
from torch.autograd.function import once_differentiable

from hatdfed.fleets.kernels.native.build import stage_libraries
from hatdfed.fleets.kernels.native.jobs import Inference, Layer, declare, share, training_job
from hatdfed.fleets.kernels.torch_stage import StageOutput, StageShape

_NORM_ROWS = 6  # forward.h: NORM
_IMAGES_PER_TASK = 8  # in inference
_LANES = 16  # a multiple of every machine's vector


def native_stages(shapes: Sequence[StageShape]) -> NativeStages | None:
    """The stages of a network, compiled; None where that cannot be done, and torch must do."""
    possible = all(shape.padding in (0, 1) and min(shape.pooled) > 0 for shape in shapes)
    libraries = stage_libraries(shapes) if possible and shapes else None
    if libraries is None:
        return None
    return NativeStages([_Stage.of(shape, library) for shape, library in zip(shapes, libraries, strict=True)])


class _Stage(NamedTuple):
    """One stage's shape and code; sizes are in floats, with channels filled up to whole vectors."""

    shape: StageShape
    library: ctypes.CDLL
    channels: int  # out
    filters: int  # per server, in training
    back_filters: int  # per server
    convolved: int  # per image; 0 if not kept for the backward pass
    vectors: int  # per pixel that goes out
    infer_filters: int  # per server, in inference

    @classmethod
    def of(cls, shape: StageShape, library: ctypes.CDLL) -> _Stage:
        declare(library)
        return cls(shape, library, *(ctypes.c_int64 * 6).in_dll(library, "sizes"))


class NativeStages:
    """What `native_stages` returns; float32 on the CPU only."""

    def __init__(self, stages: list[_Stage]) -> None:
        self._stages = stages

    def train(
        self, index: int, x: Tensor, weight: Tensor, scale: Tensor, shift: Tensor, counts: Tensor, epsilon: float
    ) -> StageOutput:
        """`train_stage` for stage number `index`."""
        return StageOutput(*_train_stage(x, weight, scale, shift, counts, epsilon, self._stages[index]))

    def infer(
        self, x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], head: tuple[Tensor, Tensor] | None = None
    ) -> Tensor:
        """`infer_stages` for all stages; with a head, [S, out, features] and [S, out], what that makes of the features.

        A head should be small: it is computed for a few images at a time.
        """
        servers, batch = len(weights[0]), x.shape[1]
        first, last = self._stages[0].shape, self._stages[-1].shape
        x = _check(x, (1 if len(x) == 1 else servers, batch, first.height, first.width, first.channels_in))
        outputs = 0 if head is None else head[0].shape[1]
        out = torch.empty(servers, batch, *((outputs,) if head else (*last.pooled, last.channels_out)))
        memory: list[object] = [x, out]
        layers = (Layer * len(self._stages))()
        for number, (stage, weight, bias) in enumerate(zip(self._stages, weights, biases, strict=True)):
            weight = _check(weight, _weight_shape(servers, stage.shape))
            bias = _check(bias, (servers, stage.shape.channels_out))
            filters = torch.empty(servers, stage.infer_filters)
            functions = (ctypes.cast(stage.library[name], ctypes.c_void_p).value for name in ("pack", "infer_images"))
            pointers = (tensor.data_ptr() for tensor in (weight, bias, filters))
            sizes = (weight[:1].numel(), stage.infer_filters, stage.shape.channels_out)
            layers[number] = Layer(*functions, *pointers, *sizes)
            memory += (weight, bias, filters)
        job = Inference(
            images=batch, per_task=_IMAGES_PER_TASK, in_size=x[:1, :1].numel(), out_size=out[:1, :1].numel(),
            shared=len(x) < servers, x=x.data_ptr(), out=out.data_ptr(),
            layers=len(layers), layer=ctypes.addressof(layers), outputs=outputs,
        )  # fmt: skip
        if head is not None:
            memory += _add_head(job, *head)
        job.memory = (*memory, layers)
        tasks = (len(layers), -(-batch // _IMAGES_PER_TASK))
        share(self._stages[0].library.infer, job, servers, tasks)
        return out


def _add_head(job: Inference, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Weights as C reads them, [features][outputs], with outputs filled up to whole vectors."""
    _, outputs, features = weight.shape
    fill = -outputs % _LANES
    packed = F.pad(weight.transpose(1, 2), (0, fill)).contiguous()
    packed_bias = F.pad(bias, (0, fill)).contiguous()
    job.features, job.padded_outputs = features, outputs + fill
    job.head, job.head_bias = packed.data_ptr(), packed_bias.data_ptr()
    return packed, packed_bias


class _TrainStage(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, scale: Tensor, shift: Tensor, counts: Tensor, epsilon: float, stage: _Stage
    ) -> tuple[Tensor, Tensor, Tensor]:
        servers, batch = x.shape[:2]
        shape, width = stage.shape, stage.channels
        x = _check(x, (servers, batch, shape.height, shape.width, shape.channels_in))
        weight = _check(weight, _weight_shape(servers, shape))
        counts = _check_counts(counts, servers, batch)
        pooled = torch.empty(servers, batch, *shape.pooled, shape.channels_out)
        mean, variance = torch.empty(servers, shape.channels_out), torch.empty(servers, shape.channels_out)
        kept = {
            "filters": torch.empty(servers, stage.filters),
            "convolved": torch.empty(servers, batch, stage.convolved),
            "norm": torch.empty(servers, _NORM_ROWS, width),
            "peak": torch.empty(servers, batch, *shape.pooled, width),
            "which": torch.empty(servers, batch, *shape.pooled, width, dtype=torch.uint8),
        }
        job = training_job(
            batch, _blocks(batch), epsilon, counts=counts, x=x, weight=weight, pooled=pooled, mean=mean,
            scale=_check(scale, mean.shape), shift=_check(shift, mean.shape), variance=variance,
            image_sums=torch.empty(servers, batch, 2, width), **kept,
        )  # fmt: skip
        share(stage.library.train_forward, job, servers, (stage.vectors, _blocks(batch), _blocks(batch)))
        ctx.mark_non_differentiable(mean, variance)
        ctx.save_for_backward(x, weight, counts, *kept.values())
        ctx.stage, ctx.kept = stage, tuple(kept)
        return pooled, mean, variance

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_pooled: Tensor, *_statistics: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, counts, *kept = ctx.saved_tensors
        stage: _Stage = ctx.stage
        servers, batch = x.shape[:2]
        blocks, channels = _blocks(batch), stage.shape.channels_out
        grad_x = torch.empty_like(x) if ctx.needs_input_grad[0] else None
        grad_weight, grad_scale = torch.empty_like(weight), torch.empty(servers, channels)
        grad_shift = torch.empty(servers, channels)
        job = training_job(
            batch, blocks, counts=counts, x=x, weight=weight, grad_x=grad_x, grad_weight=grad_weight,
            grad_pooled=_check(grad_pooled, (servers, batch, *stage.shape.pooled, channels)),
            grad_scale=grad_scale, grad_shift=grad_shift, image_sums=torch.empty(servers, batch, 2, stage.channels),
            tap_sums=torch.empty(servers, blocks, 9 * stage.shape.channels_in * stage.channels),
            back_filters=torch.empty(servers, stage.back_filters) if grad_x is not None else None,
            **dict(zip(ctx.kept, kept, strict=True)),
        )  # fmt: skip
        packing = stage.vectors if grad_x is not None else 0
        share(stage.library.train_backward, job, servers, (packing, blocks, blocks, stage.vectors))
        return grad_x, grad_weight, grad_scale, grad_shift, None, None, None


_train_stage: Callable[..., tuple[Tensor, Tensor, Tensor]] = _TrainStage.apply


def _blocks(images: int) -> int:
    """Into how many blocks C cuts so many images at most (forward.h: blocks_of)."""
    return max(1, 2 * -(-images // 16))


def _weight_shape(servers: int, shape: StageShape) -> tuple[int, ...]:
    return servers, shape.channels_out, shape.channels_in, 3, 3


def _check(tensor: Tensor, shape: Sequence[int]) -> Tensor:
    """Contiguous; C trusts sizes blindly, so they are looked at here."""
    if tensor.dtype != torch.float32 or tensor.device.type != "cpu" or tensor.shape != torch.Size(shape):
        raise ValueError(f"expected float32 {tuple(shape)} on the CPU, got {tensor.dtype} {tuple(tensor.shape)}")
    return tensor.contiguous()


def _check_counts(counts: Tensor, servers: int, batch: int) -> Tensor:
    counts = counts.to("cpu", torch.int64).contiguous()
    if counts.shape != (servers,) or any(not 0 <= count <= batch for count in counts.tolist()):
        raise ValueError(f"expected {servers} counts from 0 to {batch}, got {counts.tolist()}")
    return counts
