"""Randomness as an argument: one generator for one purpose at one time.

`stream(seed, "topology", t)` always gives the same numbers, whatever was drawn before and in whichever
process. So round t can be replayed without rounds 0 … t−1, two methods with the same seed meet the same
world, and adding a consumer of randomness disturbs no other.
"""

from __future__ import annotations

import hashlib

import numpy as np


def stream(seed: int, *key: str | int) -> np.random.Generator:
    """The generator for the purpose and time that `key` names, in the world `seed`."""
    words = np.frombuffer(_digest(seed, key), dtype="<u4")  # of the same number, without arithmetic on a large integer
    return np.random.Generator(np.random.PCG64DXSM(np.random.SeedSequence(words)))


def torch_seed(seed: int, *key: str | int) -> int:
    """A 63-bit seed for a torch generator, by the same rule as `stream`."""
    return int.from_bytes(_digest(seed, key), "little") >> 65


def _digest(seed: int, key: tuple[str | int, ...]) -> bytes:
    """128 bits that depend on every part of the key, its type and its place."""
    text = "\x1f".join([str(int(seed)), *[f"{type(part).__name__}:{part}" for part in key]])
    return hashlib.blake2b(text.encode(), digest_size=16).digest()
