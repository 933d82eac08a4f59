"""How a model looks on a link: what is sent, what comes out, how many bits it takes.

A codec turns a flat model into named tensors and back. `memory` is what it must remember between messages at its sender
(error feedback and the like); codecs without one pass it through. A server that sends to nobody encodes nothing, so its
memory stays.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
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
class FittedCodec(Codec, Protocol):
    """A codec that wants to know which numbers of a model belong to one tensor."""

    def fitted(self, sizes: Sequence[int]) -> Codec:
        """The codec for a model of tensors of these sizes, in their order."""


@runtime_checkable
class ManyAtOnce(Codec, Protocol):
    """A codec whose `encode` also takes [n, P], number by number the same: a stacked fleet asks once for all."""

    def restore(self, payload: Payload, num_params: int) -> Tensor:
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

    def restore(self, payload: Payload, num_params: int) -> Tensor:
        """The numbers in float32."""
        return payload["model"].to(torch.float32)

    def decode(self, payload: Payload, num_params: int) -> Tensor:
        """The model in float32."""
        expect(payload, "model", self.dtype, (num_params,))
        return sound(self.restore(payload, num_params))


def payload_bits(payload: Payload) -> int:
    """Bits of the payload on the wire, without the envelope."""
    return sum(8 * tensor.numel() * tensor.element_size() for tensor in payload.values())


def message_share(codec: Codec, num_params: int) -> float:
    """The most that a message takes, as a share of a float32 model; known before it is sent."""
    payload, _ = codec.encode(torch.zeros(num_params), codec.init(num_params))
    return payload_bits(payload) / (32 * num_params)


def expect(payload: Payload, name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """The tensor called `name`, if it is what was agreed upon."""
    tensor = payload.get(name)
    if tensor is None or tensor.dtype != dtype or tuple(tensor.shape) != shape:
        got = "nothing" if tensor is None else f"{tensor.dtype} of shape {tuple(tensor.shape)}"
        raise WireError("wrong-shape", f"A received model's {name!r} is {got}, wanted {dtype} of shape {shape}.")
    return tensor


def sound(model: Tensor) -> Tensor:
    """The model, if all of it is finite."""
    least, most = torch.aminmax(model)  # `isfinite` would take as much memory again, and longer
    if not math.isfinite(least) or not math.isfinite(most):
        raise WireError("not-finite", "A received model has values that are no numbers, so it was refused.")
    return model
