"""What a data set is: disjoint training, validation and test images, and how they are loaded."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

BITS_PER_PIXEL = 8
PAPER_NETWORKS = ("paper-cnn", "paper-cnn-relu")  # for which the paper reports energies


class Progress(Protocol):
    """Called with the progress of a download; the command line draws a bar from it."""

    def __call__(self, done_bytes: int, total_bytes: int | None, label: str, /) -> None:
        """Report `done_bytes` of `total_bytes`, which is None when the server did not say how long the file is."""


class Images(NamedTuple):
    """Images and their labels; both arrays are read-only."""

    pixels: NDArray[np.uint8]  # [n, C, H, W]
    labels: NDArray[np.int64]  # [n]

    @property
    def count(self) -> int:  # type: ignore[override]
        """Number of images. Hides tuple's `count` on purpose: `len` of a named tuple counts its fields."""
        return len(self.labels)


class Dataset(NamedTuple):
    """A data set with a fixed split, which depends on no seed."""

    name: str
    train: Images  # the pool that the servers' shards are drawn from
    validation: Images  # used neither for training nor for the final test
    test: Images  # used once, after the last round
    num_classes: int
    mean: tuple[float, ...]  # per channel, of pixels / 255, over `train`
    std: tuple[float, ...]
    groups: NDArray[np.int64] | None = None  # [n] of `train`: the person or place each image comes from, if known

    @property
    def bits_per_sample(self) -> int:
        """Size of one raw image on a link, in bits."""
        return math.prod(self.train.pixels.shape[1:]) * BITS_PER_PIXEL


@dataclass(frozen=True)
class DatasetKind:
    """A registered data set. The keyword-only parameters of `load` are its options."""

    name: str
    summary: str
    """One line for `hatdfed datasets`."""
    load: Callable[..., Dataset]
    """`load(data_dir, progress=None, **options)`."""
    defaults: Mapping[str, Any]
    """Default settings of a run on this data set."""
    locate: Callable[[Path | None], str | None]
    """Says where the data set would be read from now; None if it must be downloaded. Never downloads, never raises."""
    priced_networks: tuple[str, ...] = ()
    """Networks that the energy prices in `defaults` were measured with; empty if they apply to any network."""


def make_dataset(
    name: str,
    *,
    train: Images,
    validation: Images,
    test: Images,
    num_classes: int,
    groups: NDArray[np.int64] | None = None,
) -> Dataset:
    """Make a `Dataset`: arrays become read-only, mean and standard deviation are computed over `train`."""
    for images in (train, validation, test):
        images.pixels.setflags(write=False)
        images.labels.setflags(write=False)
    if groups is not None:
        groups.setflags(write=False)
    mean, std = compute_channel_statistics(train.pixels)
    return Dataset(name, train, validation, test, num_classes, mean, std, groups)


def compute_channel_statistics(pixels: NDArray[np.uint8]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Compute mean and standard deviation of pixels / 255 in each channel, from [n, C, H, W].

    Computed from a histogram, so that a large set needs no floating-point copy. A constant channel gets the
    standard deviation 1, so that dividing by it stays possible.
    """
    levels = np.arange(256) / 255
    means, deviations = [], []
    for channel in range(pixels.shape[1]):
        share = np.bincount(pixels[:, channel].ravel(), minlength=256) / pixels[:, channel].size
        mean = float((share * levels).sum())
        variance = float((share * (levels - mean) ** 2).sum())
        is_constant = np.count_nonzero(share) == 1
        means.append(mean)
        deviations.append(1.0 if is_constant else math.sqrt(variance))
    return tuple(means), tuple(deviations)
