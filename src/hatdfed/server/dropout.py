"""Dropout whose masks are a function of (seed, step, layer, sample, unit): the same in every fleet, on every device.

A generator would give other masks for another device, another batching or another order of servers. Here every unit's
fate is a hash of where it stands, in integers, so a server's round can be replayed anywhere.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

_MASK = 0xFFFFFFFF
_LAYERS = 1 << 10  # more than any network has


def keep_mask(
    seeds: Tensor, *, step: int, layer: int, batch: int, units: int, probability: float
) -> Tensor:  # [S] -> [S, batch, units] bool
    """Which units are kept; each is dropped with `probability`, whatever the others do."""
    salt = (step * _LAYERS + layer + 1) * 0x9E3779B1 & _MASK
    low, high = (seeds & _MASK), (seeds >> 32) & _MASK
    limit = int(probability * (_MASK + 1))
    if seeds.device.type == "cpu":  # numpy has integers that wrap at 32 bits by themselves
        own, other = (part.numpy().astype(np.uint32)[:, None] for part in (low, high))
        place = np.arange(batch * units, dtype=np.uint32)
        mixed = _scramble_32(_scramble_32(place + _scramble_32(own + np.uint32(salt))) ^ other)
        return torch.from_numpy(mixed >= limit).view(len(seeds), batch, units)
    places = torch.arange(batch * units, device=seeds.device)
    hashed = _scramble((places + _scramble((low + salt) & _MASK)[:, None]) & _MASK)
    return (_scramble(hashed ^ high[:, None]) >= limit).view(len(seeds), batch, units)


class SeededDropout(nn.Module):
    """`nn.Dropout` with such masks; whoever calls it says for which seed and step."""

    def __init__(self, probability: float, layer: int) -> None:
        super().__init__()
        self.probability = probability
        self.layer = layer
        self.seed = 0
        self.step = 0

    def forward(self, x: Tensor) -> Tensor:
        """Zeroes units and scales the others up."""
        seeds = torch.tensor([self.seed], dtype=torch.int64, device=x.device)
        units = x[0].numel() if len(x) else 0
        kept = keep_mask(
            seeds, step=self.step, layer=self.layer, batch=len(x), units=units, probability=self.probability
        )
        return x * kept.view(x.shape) / (1 - self.probability)


def with_seeded_dropout(module: nn.Module) -> list[SeededDropout]:
    """Replace every `nn.Dropout` in `module` that drops anything; returns what took their places.

    They are numbered in the order in which they stand there, one that stands there twice twice.
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


def _scramble(x: Tensor) -> Tensor:
    """A 32-bit finaliser: every bit of the result depends on every bit of `x` (kept in int64, where products fit)."""
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & _MASK
    x = ((x ^ (x >> 15)) * 0x846CA68B) & _MASK
    return x ^ (x >> 16)


def _scramble_32(x: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """The same in numbers that wrap; in place but for the first step."""
    x = x ^ (x >> np.uint32(16))
    x *= np.uint32(0x7FEB352D)
    x ^= x >> np.uint32(15)
    x *= np.uint32(0x846CA68B)
    x ^= x >> np.uint32(16)
    return x
