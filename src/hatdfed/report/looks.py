"""Which colour a method has: the same in every figure, table and page, whatever it is compared with.

A look is a number. Its remainder by the number of colours says which colour it is, and how often that number goes into
it says which dashes and marker. Needs neither matplotlib nor a browser: both have a palette of this size.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from hatdfed.setup.methods import METHODS

NUM_COLOURS = 8
NUM_STYLES = 4  # of dashes and markers

# Methods that are often compared with each other have different colours.
_FIRST = ("hat-dfed", "hat-dfed-plus", "rnd", "d-psgd", "sgp", "dac", "full", "local")


def find_looks(methods: Sequence[str]) -> list[int]:
    """A look for each row of a comparison; rows of one method differ by their dashes and markers."""
    looks: list[int] = []
    for method in methods:
        look = _find_look(method)
        while look in looks and len(looks) < NUM_COLOURS * NUM_STYLES:
            look = (look + NUM_COLOURS) % (NUM_COLOURS * NUM_STYLES)
            if look == _find_look(method):  # all styles of this colour are taken
                look = next(free for free in range(NUM_COLOURS * NUM_STYLES) if free not in looks)
        looks.append(look)
    return looks


def _find_look(method: str) -> int:
    """That of a built-in method by its place, that of any other by its name."""
    known = [*_FIRST, *(name for name in METHODS.built_in if name not in _FIRST)]
    place = known.index(method) if method in known else zlib.crc32(method.encode())
    return place % (NUM_COLOURS * NUM_STYLES)
