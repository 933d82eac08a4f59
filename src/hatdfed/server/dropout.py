"""Dropout whose masks are a function of (seed, step, layer, sample, unit): the same in every fleet, on every device.

A random generator would give other masks on another device, with another batching or another order of servers. Here
whether a unit is kept is an integer hash of its position, so a server's round can be replayed anywhere.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

_MASK = 0xFFFFFFFF
_LAYERS = 1 << 10  # more than any network has


def make_keep_mask(
    seeds: Tensor, *, step: int, layer: int, batch: int, units: int, probability: float
) -> Tensor:  # [S] -> [S, batch, units] bool
    """Compute which units are kept; each is dropped with `probability`, independently of the others."""
    salt, limit = make_salt(step, layer), make_threshold(probability)
    low, high = (seeds & _MASK), (seeds >> 32) & _MASK
    if seeds.device.type == "cpu":  # numpy has unsigned 32-bit integers, whose arithmetic wraps around
        own, other = (part.numpy().astype(np.uint32)[:, None] for part in (low, high))
        place = np.arange(batch * units, dtype=np.uint32)
        mixed = _hash_uint32(_hash_uint32(place + _hash_uint32(own + np.uint32(salt))) ^ other)
        return torch.from_numpy(mixed >= limit).view(len(seeds), batch, units)
    places = torch.arange(batch * units, device=seeds.device)
    hashed = _hash_int64((places + _hash_int64((low + salt) & _MASK)[:, None]) & _MASK)
    return (_hash_int64(hashed ^ high[:, None]) >= limit).view(len(seeds), batch, units)


def make_salt(step: int, layer: int) -> int:
    """32 bits that tell the layers of a network and the steps of a round apart."""
    return (step * _LAYERS + layer + 1) * 0x9E3779B1 & _MASK


def make_threshold(probability: float) -> int:
    """The 32-bit hash from which on a unit is kept."""
    return int(probability * (_MASK + 1))


def make_scale(probability: float) -> float:
    """What scales up a unit that is kept, in float32."""
    return float(torch.ones(()) / (1 - probability))


class _KeepMask(torch.autograd.Function):
    """`make_keep_mask` of one server, which `torch.vmap` makes that of many."""

    @staticmethod
    def forward(seed: Tensor, step: int, layer: int, batch: int, units: int, probability: float) -> Tensor:
        """[] -> [batch, units]."""
        sizes = {"batch": batch, "units": units}
        return make_keep_mask(seed[None], step=step, layer=layer, **sizes, probability=probability)[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Nothing is kept: a mask has no gradient."""
        ctx.mark_non_differentiable(output)

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        seeds: Tensor,
        step: int,
        layer: int,
        batch: int,
        units: int,
        probability: float,
    ) -> tuple[Tensor, int]:
        """[S] -> [S, batch, units]."""
        sizes = {"batch": batch, "units": units}
        return make_keep_mask(seeds, step=step, layer=layer, **sizes, probability=probability), 0


class SeededDropout(nn.Module):
    """`nn.Dropout` with these masks; the caller sets `seed` and `step` before each forward pass."""

    def __init__(self, probability: float, layer: int) -> None:
        super().__init__()
        self.probability = probability
        self.layer = layer
        self.seed: int | Tensor = 0  # a tensor [] where servers are lifted
        self.step = 0

    def forward(self, x: Tensor) -> Tensor:
        """Zero the dropped units and scale the others up."""
        seed = torch.as_tensor(self.seed, dtype=torch.int64, device=x.device)
        units = x[0].numel() if len(x) else 0
        kept: Tensor = _KeepMask.apply(seed, self.step, self.layer, len(x), units, self.probability)  # type: ignore[no-untyped-call]
        return x * kept.view(x.shape) / (1 - self.probability)


def replace_dropouts(module: nn.Module) -> list[SeededDropout]:
    """Replace every `nn.Dropout` in `module` with 0 < p < 1 by a `SeededDropout`; return the new layers.

    They are numbered in the order of the module's layers; a layer that is used twice is replaced by two.
    """
    replaced: list[SeededDropout] = []

    def walk(parent: nn.Module) -> None:
        for name, child in list(parent._modules.items()):
            if type(child) is nn.Dropout and 0 < child.p < 1:
                replaced.append(SeededDropout(child.p, len(replaced)))
                setattr(parent, name, replaced[-1])
            elif child is not None:
                walk(child)

    walk(module)
    return replaced


def find_dropouts(module: nn.Module) -> list[SeededDropout]:
    """Return the layers that `replace_dropouts` has made."""
    return [layer for layer in module.modules() if isinstance(layer, SeededDropout)]


def _hash_int64(x: Tensor) -> Tensor:
    """Finalise a 32-bit hash: every bit of the result depends on every bit of `x` (in int64, where products fit)."""
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & _MASK
    x = ((x ^ (x >> 15)) * 0x846CA68B) & _MASK
    return x ^ (x >> 16)


def _hash_uint32(x: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Finalise the same hash in uint32 arithmetic; in place but for the first step."""
    x = x ^ (x >> np.uint32(16))
    x *= np.uint32(0x7FEB352D)
    x ^= x >> np.uint32(15)
    x *= np.uint32(0x846CA68B)
    x ^= x >> np.uint32(16)
    return x
