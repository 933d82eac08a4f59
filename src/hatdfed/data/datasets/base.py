"""What a data set is: three sets of labelled images that share no image, and where they come from."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

BITS_PER_PIXEL = 8


class Progress(Protocol):
    """Told how far a download has come; the command line draws a bar from it."""

    def __call__(self, done_bytes: int, total_bytes: int | None, label: str, /) -> None:
        """`total_bytes` is None when the other side did not say how long the file is."""


class Images(NamedTuple):
    """Labelled images; both arrays are read-only."""

    pixels: NDArray[np.uint8]  # [n, C, H, W]
    labels: NDArray[np.int64]  # [n]

    @property
    def count(self) -> int:  # type: ignore[override]
        """How many images there are; it hides tuple's `count`, and `len` of a named tuple counts its fields."""
        return len(self.labels)


class Dataset(NamedTuple):
    """One data set, split once and for all: the split depends on no seed."""

    name: str
    train: Images  # the pool servers draw their shards from
    validation: Images  # never trained on, never tested on
    test: Images  # read once, after the last round
    num_classes: int
    mean: tuple[float, ...]  # per channel, of pixels / 255, over `train`
    std: tuple[float, ...]
    groups: NDArray[np.int64] | None = None  # [n] of `train`: the person or place each image comes from, if known

    @property
    def bits_per_sample(self) -> int:
        """Bits that one raw image takes on a link."""
        return math.prod(self.train.pixels.shape[1:]) * BITS_PER_PIXEL


@dataclass(frozen=True)
class DatasetKind:
    """A data set by name. The keyword-only parameters of `load` are its options."""

    name: str
    summary: str
    """One line for `hatdfed datasets`."""
    load: Callable[..., Dataset]
    """`load(data_dir, progress=None, **options)`."""
    defaults: Mapping[str, Any]
    """The layer of configuration that this data set brings."""
    locate: Callable[[Path | None], str | None]
    """Where it would be read from now, or None if that takes a download. Never downloads, never raises."""
    priced_networks: tuple[str, ...] = ()
    """The networks that the prices in `defaults` were measured with; empty: they are for any network."""


def make_dataset(
    name: str,
    *,
    train: Images,
    validation: Images,
    test: Images,
    num_classes: int,
    groups: NDArray[np.int64] | None = None,
) -> Dataset:
    """A data set whose arrays are read-only and whose mean and deviation are those of `train`."""
    for images in (train, validation, test):
        images.pixels.setflags(write=False)
        images.labels.setflags(write=False)
    if groups is not None:
        groups.setflags(write=False)
    mean, std = channel_statistics(train.pixels)
    return Dataset(name, train, validation, test, num_classes, mean, std, groups)


def channel_statistics(pixels: NDArray[np.uint8]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of pixels / 255 in each channel, from [n, C, H, W].

    Taken from a histogram, so a large set needs no copy in floating point. A channel of one single colour
    has deviation 1 here: dividing by it must stay possible.
    """
    levels = np.arange(256) / 255
    means, deviations = [], []
    for channel in range(pixels.shape[1]):
        share = np.bincount(pixels[:, channel].ravel(), minlength=256) / pixels[:, channel].size
        mean = float((share * levels).sum())
        variance = float((share * (levels - mean) ** 2).sum())
        one_colour = np.count_nonzero(share) == 1
        means.append(mean)
        deviations.append(1.0 if one_colour else math.sqrt(variance))
    return tuple(means), tuple(deviations)
