"""Arrays as images of one shape and 8 bits, or the reason why they are none."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hatdfed.errors import DataError

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
