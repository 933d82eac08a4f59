"""How a model looks on a link: what is sent, what comes out, how many bits it takes.

A codec turns a flat model into named tensors and back. `memory` is what it must remember between messages at its sender
(error feedback and the like); codecs without one pass it through. A server that sends to nobody encodes nothing, so its
memory stays.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F  # noqa: N812 (the name everybody knows)
from torch import Tensor

from hatdfed.errors import WireError

Payload = Mapping[str, Tensor]
Memory = Tensor  # [P] or empty


class Codec(Protocol):
    """Encodes a model for the wire."""

    def init(self, num_params: int) -> Memory:
        """The memory before the first message."""

    def encode(self, model: Tensor, memory: Memory) -> tuple[Payload, Memory]:
        """What to send, and what to remember."""

    def decode(self, payload: Payload, num_params: int) -> Tensor:
        """The model [P] that a receiver sees; refuses what is not one."""


@runtime_checkable
class ManyAtOnce(Codec, Protocol):
    """A codec whose `encode` also takes [n, P], number by number the same: a stacked fleet asks once for all."""

    def restore(self, payload: Payload) -> Tensor:
        """[n, P] what `decode` gives, without looking whether it is sound."""


@dataclass(frozen=True)
class Plain:
    """The whole model in one floating-point format."""

    dtype: torch.dtype

    def init(self, num_params: int) -> Memory:
        """Nothing to remember."""
        return torch.zeros(0)

    def encode(self, model: Tensor, memory: Memory) -> tuple[Payload, Memory]:
        """The model, rounded to the format; a number too large for it is sent as its largest, infinity as it is."""
        if model.dtype == self.dtype:
            return {"model": model}, memory
        largest = torch.finfo(self.dtype).max
        clamped = torch.where(torch.isinf(model), model, model.clamp(-largest, largest))
        return {"model": clamped.to(self.dtype)}, memory

    def restore(self, payload: Payload) -> Tensor:
        """The numbers in float32."""
        return payload["model"].to(torch.float32)

    def decode(self, payload: Payload, num_params: int) -> Tensor:
        """The model in float32."""
        expect(payload, "model", self.dtype, (num_params,))
        return _sound(self.restore(payload))


@dataclass(frozen=True)
class Int8:
    """Eight bits a number, one float32 scale for each block of numbers, and error feedback.

    What rounding took from one message is added to the next: over time nothing is lost. F. Seide et al. 1-bit
    stochastic gradient descent. Interspeech 2014; S. P. Karimireddy et al. Error feedback fixes SignSGD. ICML 2019.

    Small tensors are sent as they are: they weigh nothing, and in a batch norm's variances numbers of very unlike size
    stand side by side, of which a common scale would make zeros.
    """

    block: int = 128  # numbers
    plain: tuple[tuple[int, int], ...] = ()  # ranges of numbers that are sent in float32

    def fitted(self, sizes: Sequence[int]) -> Int8:
        """For a model of tensors of these sizes, in their order."""
        ends = list(accumulate(sizes))
        small = tuple((end - size, end) for size, end in zip(sizes, ends, strict=True) if size < SMALL_TENSOR)
        return replace(self, plain=small if len(small) < len(sizes) else ())

    def init(self, num_params: int) -> Memory:
        """Nothing has been lost."""
        return torch.zeros(num_params)

    def encode(self, model: Tensor, memory: Memory) -> tuple[Payload, Memory]:  # [..., P], [..., P]
        """The model and what earlier messages lost, to the nearest of 255 levels; what this one loses is remembered."""
        wanted = model + memory
        coarse, plain = self._split(wanted)
        size = coarse.shape[-1]
        blocks = F.pad(coarse, (0, -size % self.block)).view(*coarse.shape[:-1], -1, self.block)
        scale = blocks.abs().amax(dim=-1) / 127
        steps = torch.where(scale > 0, scale, 1.0)
        levels = torch.nan_to_num(blocks / steps[..., None]).round().clamp(-127, 127).to(torch.int8)
        payload = {"model": levels.flatten(-2)[..., :size].contiguous(), "scale": scale}
        if self.plain:
            payload["plain"] = plain
        lost = wanted - self.restore(payload)
        return payload, torch.where(torch.isfinite(lost), lost, 0.0)  # a model that is none leaves no trace

    def restore(self, payload: Payload) -> Tensor:  # -> [..., P]
        """Levels times the scale of their block, and what was sent as it is, each in its place."""
        levels, scale = payload["model"], payload["scale"]
        coarse = levels.to(torch.float32) * scale.repeat_interleave(self.block, dim=-1)[..., : levels.shape[-1]]
        if not self.plain:
            return coarse
        plain = torch.split_with_sizes(payload["plain"], [stop - start for start, stop in self.plain], dim=-1)
        gaps = [start - before for (_, before), (start, _) in pairwise([(0, 0), *self.plain])]
        between = torch.split_with_sizes(coarse, [*gaps, coarse.shape[-1] - sum(gaps)], dim=-1)
        parts = [part for pair in zip(between, plain, strict=False) for part in pair]
        return torch.cat([*parts, between[-1]], dim=-1)

    def decode(self, payload: Payload, num_params: int) -> Tensor:
        """The model in float32."""
        num_plain = sum(stop - start for start, stop in self.plain)
        num_coarse = num_params - num_plain
        expect(payload, "model", torch.int8, (num_coarse,))
        expect(payload, "scale", torch.float32, (math.ceil(num_coarse / self.block),))
        if self.plain:
            expect(payload, "plain", torch.float32, (num_plain,))
        return _sound(self.restore(payload))

    def _split(self, model: Tensor) -> tuple[Tensor, Tensor]:
        """What is rounded, and what is sent as it is."""
        ends = [0, *(end for pair in self.plain for end in pair), model.shape[-1]]
        pieces = [model[..., start:stop] for start, stop in pairwise(ends)]
        plain = pieces[1::2] or [model[..., :0]]
        return torch.cat(pieces[0::2], dim=-1), torch.cat(plain, dim=-1)


SMALL_TENSOR = 1024  # numbers


def payload_bits(payload: Payload) -> int:
    """What the payload takes on the wire, without the envelope."""
    return sum(8 * tensor.numel() * tensor.element_size() for tensor in payload.values())


def message_share(codec: Codec, num_params: int) -> float:
    """What a message takes of a float32 model at most, known before it is sent."""
    payload, _ = codec.encode(torch.zeros(num_params), codec.init(num_params))
    return payload_bits(payload) / (32 * num_params)


def expect(payload: Payload, name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """The tensor called `name`, if it is what was agreed upon."""
    tensor = payload.get(name)
    if tensor is None or tensor.dtype != dtype or tuple(tensor.shape) != shape:
        got = "nothing" if tensor is None else f"{tensor.dtype} of shape {tuple(tensor.shape)}"
        raise WireError("wrong-shape", f"A received model's {name!r} is {got}, wanted {dtype} of shape {shape}.")
    return tensor


def _sound(model: Tensor) -> Tensor:
    least, most = torch.aminmax(model)  # `isfinite` would take as much memory again, and longer
    if not math.isfinite(least) or not math.isfinite(most):
        raise WireError("not-finite", "A received model has values that are no numbers, so it was refused.")
    return model
