"""What passes between those who find images and those who keep them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from hatdfed.learning.datasets.base import BITS_PER_PIXEL
from hatdfed.learning.own.pixels import ImageShape, Pixels, as_images, as_labels

STOCK = -1  # the round before the first: what is there at the start


class OwnImage(NamedTuple):
    """One labelled image of a server's own."""

    name: str  # the same name with other content replaces the image
    pixels: Pixels  # [C, H, W]
    label: int
    mark: float  # in [0, 1), from the content alone: equal images are held out together, also after a restart


class Inlet(Protocol):
    """Where new images come from."""

    def new(self, t: int) -> Sequence[OwnImage]:
        """What came since the last call, oldest first; asked for `STOCK` once, then for each round once."""


class Notices:
    """Says a thing once."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._said: set[str] = set()

    def say_once(self, what: str, sentence: str) -> None:
        """Warn with the sentence, unless something of the kind was said before."""
        if what not in self._said:
            self._said.add(what)
            self._warn(sentence)

    def say_too_many(self, most: int) -> None:
        """Warn that images had to make room."""
        self.say_once(
            "too many",
            f"There are more than {most} images, so the oldest are left out. "
            "Raise max_images if there is memory for more.",
        )


def mark_of(content: bytes) -> float:
    """A number in [0, 1) that depends on the content alone, the same on every machine and day.

    >>> mark_of(b"cat") == mark_of(b"cat") != mark_of(b"dog")
    True
    """
    # 53 bits are what a float holds exactly, so the result stays below 1.
    return (int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little") >> 11) / 2**53


def labelled(
    x: NDArray[Any],
    y: NDArray[Any],
    image_shape: ImageShape,
    num_classes: int,
    *,
    prefix: str,
    most: int,
    notices: Notices,
) -> list[OwnImage]:
    """Images of two arrays, of which the last `most` are taken; the oldest come first."""
    x = np.atleast_1d(x)
    labels = as_labels(y, count=len(x), num_classes=num_classes)
    first = max(0, len(labels) - most)
    if first:
        notices.say_too_many(most)
    pixels = as_images(x[first:], image_shape)
    return [
        OwnImage(f"{prefix}{first + i}", image, int(label), mark_of(image.tobytes()))
        for i, (image, label) in enumerate(zip(pixels, labels[first:], strict=True))
    ]


def bits_per_sample(image_shape: ImageShape) -> int:
    """Bits that one raw image takes on a link, as the data sets count them."""
    return math.prod(image_shape) * BITS_PER_PIXEL
