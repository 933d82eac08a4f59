"""Joules per bit of any link without a table of all: for worlds of so many servers that N² numbers are too many.

A world's link efficiencies are one long draw, row by row. Its generator is a linear congruence of 128 bits behind an
output function (PCG64 DXSM: M. O'Neill, and numpy's documentation), and such a congruence can be started anywhere:
n steps are one step with another factor and summand. So the number at (i, j) is had by itself, and is the very number
that stands there in the table.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from hatdfed.core.links import FloatMatrix, Indices
from hatdfed.randomness import stream

_FACTOR = 0xDA942042E4DD58B5  # of one step, and in the output function
_MODULUS = 1 << 128
_WORD = (1 << 64) - 1
_HALF_WORD = np.uint64(32)
_LOW_HALF = np.uint64((1 << 32) - 1)

Words = NDArray[np.uint64]
Real = TypeVar("Real", float, NDArray[np.float64])


@dataclass(frozen=True, eq=False)
class LinkEfficiencies:
    """The link efficiencies of world `seed`, computed when they are looked up by `[receivers, senders]`."""

    seed: int
    num_servers: int
    kbit_per_joule: tuple[float, float]

    def __getitem__(self, links: tuple[Indices, Indices]) -> NDArray[np.float64]:
        receiver, sender = np.broadcast_arrays(*links)
        # The generator's state before that number, 128 bits in two words.
        high, low = _product(_pick(self._factors, sender), _pick(self._rows, receiver))
        add_high, add_low = _pick(self._summands, sender)
        low = low + add_low
        high = high + add_high + (low < add_low)
        bits = (_output(high, low) >> np.uint64(11)).astype(np.float64)
        return np.where(receiver == sender, 0.0, 1 / self._bits_per_joule(bits))

    def one(self, receiver: int, sender: int) -> float:
        """The efficiency of a single link, computed in whole numbers of any length."""
        if receiver == sender:
            return 0.0
        factors, summands = self._powers
        high, low = divmod((factors[sender] * self._states[receiver] + summands[sender]) % _MODULUS, 1 << 64)
        mixed = (high ^ (high >> 32)) * _FACTOR & _WORD
        mixed = (mixed ^ (mixed >> 48)) * (low | 1) & _WORD
        return 1 / self._bits_per_joule(float(mixed >> 11))

    def _bits_per_joule(self, bits: Real) -> Real:
        """From 53 random bits, as numpy makes a uniform number of them."""
        least, most = self.kbit_per_joule
        return 1000 * (least + (most - least) * (bits * 2.0**-53))

    def table(self) -> FloatMatrix:  # [N, N]
        """The efficiencies of all links."""
        size = (self.num_servers, self.num_servers)
        efficiency = stream(self.seed, "link-efficiency").uniform(*self.kbit_per_joule, size=size)
        joules_per_bit: FloatMatrix = 1 / (1000 * efficiency)
        np.fill_diagonal(joules_per_bit, 0.0)
        return joules_per_bit

    @cached_property
    def _step(self) -> tuple[int, int]:
        """State and summand of the generator at its start."""
        state = stream(self.seed, "link-efficiency").bit_generator.state["state"]
        return int(state["state"]), int(state["inc"])

    @cached_property
    def _powers(self) -> tuple[list[int], list[int]]:
        """[N + 1] factor and summand of so many steps."""
        factors, summands, increment = [1], [0], self._step[1]
        for _ in range(self.num_servers):
            factors.append(factors[-1] * _FACTOR % _MODULUS)
            summands.append((summands[-1] * _FACTOR + increment) % _MODULUS)
        return factors, summands

    @cached_property
    def _factors(self) -> Words:
        return _words(self._powers[0])

    @cached_property
    def _summands(self) -> Words:
        return _words(self._powers[1])

    @cached_property
    def _rows(self) -> Words:
        return _words(self._states)

    @cached_property
    def _states(self) -> list[int]:
        """The state before each row's first number."""
        states, (factors, summands) = [self._step[0]], self._powers
        while len(states) < self.num_servers:
            states.append((states[-1] * factors[-1] + summands[-1]) % _MODULUS)
        return states


def _words(numbers: list[int]) -> Words:  # -> [2, n]
    return np.array([[number >> 64 for number in numbers], [number & _WORD for number in numbers]], dtype=np.uint64)


def _pick(words: Words, place: Indices) -> tuple[Words, Words]:
    return words[0][place], words[1][place]


def _product(one: tuple[Words, Words], other: tuple[Words, Words]) -> tuple[Words, Words]:
    """The lower 128 bits of a product; words wrap around as they should."""
    low, carried = one[1] * other[1], _upper_word(one[1], other[1])
    return carried + one[0] * other[1] + one[1] * other[0], low


def _upper_word(one: Words, other: Words) -> Words:
    """The upper word of the product of two words, by halves."""
    one_low, one_high = one & _LOW_HALF, one >> _HALF_WORD
    other_low, other_high = other & _LOW_HALF, other >> _HALF_WORD
    middle = one_high * other_low + (one_low * other_low >> _HALF_WORD)
    other_middle = one_low * other_high + (middle & _LOW_HALF)
    upper: Words = one_high * other_high + (middle >> _HALF_WORD) + (other_middle >> _HALF_WORD)
    return upper


def _output(high: Words, low: Words) -> Words:
    """64 bits of a state: "double xorshift multiply"."""
    mixed = high ^ (high >> _HALF_WORD)
    mixed = mixed * np.uint64(_FACTOR)
    mixed = mixed ^ (mixed >> np.uint64(48))
    result: Words = mixed * (low | np.uint64(1))
    return result
