"""Dropout's masks on an NVIDIA GPU, in one launch: those of `hatdfed.server.dropout`, to the bit."""

# mypy: ignore-errors
# ruff: noqa: N803
# (mypy: this is Triton's language, not Python's. ruff: capitals are compile-time constants, as everywhere in Triton.)

import torch
from torch import Tensor

from hatdfed.fleets.kernels.triton.parts import jit, tl
from hatdfed.server.dropout import make_salt, make_scale, make_threshold

BLOCK = 1024


def dropout_factors(seeds: Tensor, *, step: int, layer: int, batch: int, units: int, probability: float) -> Tensor:
    """See `vectors.dropout_factors`."""
    servers, size = len(seeds), batch * units
    factors = torch.empty(servers, batch, units, device=seeds.device)
    salt, threshold = _as_int32(make_salt(step, layer)), _as_int32(make_threshold(probability))
    grid = (-(-size // BLOCK), servers)
    _fill[grid](seeds, factors, size, salt, threshold, make_scale(probability), BLOCK=BLOCK)
    return factors


def _as_int32(bits: int) -> int:
    """The signed number with these 32 bits: its type does not depend on its size."""
    return bits - (1 << 32) if bits >> 31 else bits


@jit
def _hash(x):
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@jit
def _fill(seeds, factors, size, salt, threshold, scale, BLOCK: tl.constexpr):
    server = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    seed = tl.load(seeds + server)
    low, high = seed.to(tl.uint32), (seed >> 32).to(tl.uint32)
    own = _hash(low + salt.to(tl.uint32))
    mixed = _hash(_hash(place.to(tl.uint32) + own) ^ high)
    kept = mixed >= threshold.to(tl.uint32)
    tl.store(factors + server * size + place, tl.where(kept, scale, 0.0), mask=place < size)
