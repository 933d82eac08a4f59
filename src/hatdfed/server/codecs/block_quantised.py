"""Codecs that send every number of a model in a few bits, with error feedback.

What rounding took from one message is added to the next: over time nothing is lost. F. Seide et al. 1-bit stochastic
gradient descent. Interspeech 2014; S. P. Karimireddy et al. Error feedback fixes SignSGD. ICML 2019.

Small tensors are sent as they are: they weigh nothing, and in a batch norm's variances numbers of very unlike size
stand side by side, of which a common scale would make zeros.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import ClassVar, Self

import torch
import torch.nn.functional as F  # noqa: N812 (the name everybody knows)
from torch import Tensor

from hatdfed.server.codecs.base import Memory, Payload, expect, sound

SMALL_TENSOR = 1024  # numbers


@dataclass(frozen=True)
class BlockQuantised:
    """Whole levels from −`most` to `most`, and a scale for each block of numbers."""

    block: int  # numbers
    plain: tuple[tuple[int, int], ...] = ()  # ranges of numbers that are sent in float32

    most: ClassVar[int]
    scale_format: ClassVar[torch.dtype]
    stored_format: ClassVar[torch.dtype]
    numbers_in_one: ClassVar[int]  # levels in one number of the stored format

    def fitted(self, sizes: Sequence[int]) -> Self:
        """For a model of tensors of these sizes, in their order."""
        ends = list(accumulate(sizes))
        small = tuple((end - size, end) for size, end in zip(sizes, ends, strict=True) if size < SMALL_TENSOR)
        return replace(self, plain=small if len(small) < len(sizes) else ())

    def init(self, num_params: int) -> Memory:
        """Nothing has been lost."""
        return torch.zeros(num_params)

    def encode(self, model: Tensor, memory: Memory) -> tuple[Payload, Memory]:  # [..., P], [..., P]
        """The model and what earlier messages lost, to the nearest level; what this one loses is remembered.

        A number beyond the largest level of the largest scale is sent as that, and the rest of it is forgotten: it
        would be owed for ever. Infinity is sent as it is, for the receiver to refuse.
        """
        largest = torch.finfo(self.scale_format).max
        wanted = model + memory
        coarse, plain = self._split(wanted)
        size = coarse.shape[-1]
        blocks = F.pad(coarse, (0, -size % self.block)).view(*coarse.shape[:-1], -1, self.block)
        exact = blocks.abs().amax(dim=-1) / self.most
        scale = torch.where(torch.isinf(exact), exact, exact.clamp(max=largest)).to(self.scale_format)
        steps = torch.where(scale > 0, scale, 1.0).to(torch.float32)
        levels = torch.nan_to_num(blocks / steps[..., None]).round().clamp(-self.most, self.most).to(torch.int8)
        payload = {"model": self.stored(levels.flatten(-2)[..., :size]), "scale": scale}
        if self.plain:
            payload["plain"] = plain
        lost = wanted - self.restore(payload, model.shape[-1])
        lost = torch.where(torch.isfinite(lost), lost, 0.0)  # a model that is not finite leaves no trace
        return payload, lost.clamp_(-largest, largest)  # one step of the largest scale

    def restore(self, payload: Payload, num_params: int) -> Tensor:  # -> [..., P]
        """Levels times the scale of their block, and what was sent as it is, each in its place."""
        levels = self.levels(payload["model"], num_params - self._num_plain)
        scale = payload["scale"].to(torch.float32).repeat_interleave(self.block, dim=-1)
        coarse = levels.to(torch.float32) * scale[..., : levels.shape[-1]]
        if not self.plain:
            return coarse
        plain = torch.split_with_sizes(payload["plain"], [stop - start for start, stop in self.plain], dim=-1)
        gaps = [start - before for (_, before), (start, _) in pairwise([(0, 0), *self.plain])]
        between = torch.split_with_sizes(coarse, [*gaps, coarse.shape[-1] - sum(gaps)], dim=-1)
        parts = [part for pair in zip(between, plain, strict=False) for part in pair]
        return torch.cat([*parts, between[-1]], dim=-1)

    def decode(self, payload: Payload, num_params: int) -> Tensor:
        """The model in float32."""
        num_coarse = num_params - self._num_plain
        expect(payload, "model", self.stored_format, (math.ceil(num_coarse / self.numbers_in_one),))
        expect(payload, "scale", self.scale_format, (math.ceil(num_coarse / self.block),))
        if self.plain:
            expect(payload, "plain", torch.float32, (self._num_plain,))
        return sound(self.restore(payload, num_params))

    def stored(self, levels: Tensor) -> Tensor:  # [..., n] int8
        """Levels as they travel."""
        raise NotImplementedError

    def levels(self, stored: Tensor, count: int) -> Tensor:  # -> [..., count]
        """And back."""
        raise NotImplementedError

    @property
    def _num_plain(self) -> int:
        return sum(stop - start for start, stop in self.plain)

    def _split(self, model: Tensor) -> tuple[Tensor, Tensor]:
        """What is rounded, and what is sent as it is."""
        ends = [0, *(end for pair in self.plain for end in pair), model.shape[-1]]
        pieces = [model[..., start:stop] for start, stop in pairwise(ends)]
        plain = pieces[1::2] or [model[..., :0]]
        return torch.cat(pieces[0::2], dim=-1), torch.cat(plain, dim=-1)


@dataclass(frozen=True)
class Int8(BlockQuantised):
    """Eight bits a number: 255 levels, a float32 scale for each 128 numbers."""

    block: int = 128

    most = 127
    scale_format = torch.float32
    stored_format = torch.int8
    numbers_in_one = 1

    def stored(self, levels: Tensor) -> Tensor:
        """As they are."""
        return levels.contiguous()

    def levels(self, stored: Tensor, count: int) -> Tensor:
        """As they are."""
        return stored


@dataclass(frozen=True)
class Int4(BlockQuantised):
    """Four bits a number: 15 levels, two in a byte, and a float16 scale for each 64 numbers, which need it finer."""

    block: int = 64

    most = 7
    scale_format = torch.float16
    stored_format = torch.uint8
    numbers_in_one = 2

    def stored(self, levels: Tensor) -> Tensor:
        """The first of two in the lower half of a byte; from 1 to 15, where 8 is zero."""
        halves = F.pad((levels + 8).to(torch.uint8), (0, levels.shape[-1] % 2))
        return halves[..., 0::2] | (halves[..., 1::2] << 4)

    def levels(self, stored: Tensor, count: int) -> Tensor:
        """Both halves of every byte."""
        halves = torch.stack([stored & 15, stored >> 4], dim=-1).flatten(-2)
        return halves[..., :count].to(torch.int8) - 8
