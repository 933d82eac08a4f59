"""What passes between those who find images and those who keep them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from hatdfed.data.datasets.base import BITS_PER_PIXEL
from hatdfed.errors import DataError

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


ImageShape = tuple[int, int, int]  # C, H, W
Pixels = NDArray[np.uint8]

UNREADABLE = "cannot be read or is cut short"
WRONG_SIZE = "wrong size"
WRONG_NUMBERS = "wrong numbers"


class UnfitError(DataError):
    """Data that are not the images we want; `reason` is what such cases are counted under."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


def as_images(x: NDArray[Any], image_shape: ImageShape) -> Pixels:  # -> [n, C, H, W]
    """Images of 8 bits from [n, H, W], [n, C, H, W] or [n, H, W, C]; floats from 0 to 1 become 0 to 255."""
    channels, height, width = image_shape
    if x.ndim == 4 and x.shape[1:] == image_shape:
        laid = x
    elif x.ndim == 4 and x.shape[1:] == (height, width, channels):
        laid = x.transpose(0, 3, 1, 2)
    elif x.ndim == 3 and channels == 1 and x.shape[1:] == (height, width):
        laid = x[:, None]
    else:
        raise UnfitError(
            WRONG_SIZE, f"images of {in_words(x.shape[1:])} were found, {in_words(image_shape)} were wanted"
        )
    return np.ascontiguousarray(_as_bytes(laid))


def as_labels(y: NDArray[Any], *, count: int, num_classes: int) -> NDArray[np.int64]:  # -> [n]
    """Labels of `count` images, each from 0 to num_classes − 1."""
    if y.dtype.kind not in "iu" or y.shape != (count,):
        raise UnfitError(
            WRONG_NUMBERS, f"labels are {y.dtype} of shape {list(y.shape)}, integers of shape [{count}] were wanted"
        )
    if count and not (int(y.min()) >= 0 and int(y.max()) < num_classes):
        raise UnfitError(
            WRONG_NUMBERS, f"labels go from {y.min()} to {y.max()}, from 0 to {num_classes - 1} were wanted"
        )
    return y.astype(np.int64)


def in_words(shape: tuple[int, ...]) -> str:
    """A shape as people write it.

    >>> in_words((3, 32, 32))
    '3×32×32'
    """
    return "×".join(map(str, shape)) or "no pixels"


def _as_bytes(x: NDArray[Any]) -> Pixels:
    if x.dtype == np.uint8:
        return x
    if x.dtype.kind != "f":
        raise UnfitError(WRONG_NUMBERS, f"pixels are {x.dtype}, uint8 or floats from 0 to 1 were wanted")
    # A NaN fails the comparison too. We do not guess that floats go to 255: a dark image would be blown up.
    if x.size and not (x.min() >= 0 and x.max() <= 1):
        raise UnfitError(WRONG_NUMBERS, f"pixels are floats from {x.min():.4g} to {x.max():.4g}, 0 to 1 were wanted")
    whole: Pixels = np.rint(x * 255).astype(np.uint8)
    return whole
