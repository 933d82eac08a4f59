"""Codecs that send each receiver what it does not have yet.

Sender and receiver both remember what the receiver has of the sender's model; the sender moves its copy only when the
message has arrived, so the two never part. That takes a model for every pair of servers that ever spoke.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from hatdfed.errors import WireError
from hatdfed.server.codecs.base import Codec, Memory, Payload, Plain, expect
from hatdfed.server.codecs.block_quantised import BlockQuantised, Int4, Int8

_WHOLE = Plain(torch.float32)


@runtime_checkable
class LinkCodec(Codec, Protocol):
    """A codec whose messages depend on what the receiver has; `encode` and `decode` are for one that has nothing."""

    def encode_for(self, model: Tensor, known: Tensor | None) -> tuple[Payload, Tensor]:
        """What to send to a receiver that has `known`, and what it has once that has arrived."""

    def decode_from(self, payload: Payload, known: Tensor | None, num_params: int) -> Tensor:
        """The model [P] that a receiver with `known` sees; refuses what is not one."""


@dataclass(frozen=True)
class TopK:
    """The numbers that have changed most since the receiver last heard, each with its place: 64 bits for one in twenty.

    The first message to a receiver is the whole model. Numbers that were passed over stay different and are larger the
    next time, so nothing is lost over time. S. U. Stich, J.-B. Cordonnier, M. Jaggi. Sparsified SGD with memory.
    NeurIPS 2018; A. Koloskova, S. Stich, M. Jaggi. Decentralized stochastic optimization and gossip algorithms with
    compressed communication. ICML 2019.
    """

    share: float = 0.05  # of all numbers

    def init(self, num_params: int) -> Memory:
        """What is remembered belongs to a link, not to a server."""
        return _WHOLE.init(num_params)

    def encode(self, model: Tensor, memory: Memory) -> tuple[Payload, Memory]:
        """The whole model."""
        return _WHOLE.encode(model, memory)

    def decode(self, payload: Payload, num_params: int) -> Tensor:
        """The whole model."""
        return _WHOLE.decode(payload, num_params)

    def encode_for(self, model: Tensor, known: Tensor | None) -> tuple[Payload, Tensor]:
        """The largest differences, as the numbers that the model has there."""
        if known is None:
            return _WHOLE.encode(model, _WHOLE.init(len(model)))[0], model.clone()
        place = torch.topk((model - known).abs(), self._count(len(model))).indices
        now = known.clone()
        now[place] = model[place]
        return {"place": place.to(torch.int32), "value": model[place]}, now

    def decode_from(self, payload: Payload, known: Tensor | None, num_params: int) -> Tensor:
        """What was known, with the new numbers in their places."""
        if known is None or "model" in payload:
            return self.decode(payload, num_params)
        count = self._count(num_params)
        place = expect(payload, "place", torch.int32, (count,)).long()
        value = expect(payload, "value", torch.float32, (count,))
        if not torch.isfinite(value).all():
            raise WireError("not-finite", "A received model has values that are no numbers, so it was refused.")
        if count and not 0 <= int(place.min()) <= int(place.max()) < num_params:
            raise WireError("wrong-shape", "A received message names places that the model does not have.")
        model = known.clone()
        model[place] = value
        return model

    def _count(self, num_params: int) -> int:
        return math.ceil(self.share * num_params)


CODECS: dict[str, Codec] = {
    "float32": Plain(torch.float32),
    "float16": Plain(torch.float16),
    "int8": Int8(),
    "int4": Int4(),
    "top-k": TopK(),
}


def codec_for(name: str, sizes: Sequence[int]) -> Codec:
    """The codec called `name`, for a model of tensors of these sizes."""
    codec = CODECS[name]
    return codec.fitted(sizes) if isinstance(codec, BlockQuantised) else codec
