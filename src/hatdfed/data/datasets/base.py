"""What a data set is: disjoint training, validation and test samples, its task, and how it is loaded."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from hatdfed.core.task import CLASSIFICATION, NEXT_TOKEN, REGRESSION, TaskKind

PAPER_NETWORKS = ("paper-cnn", "paper-cnn-relu")  # for which the paper reports energies


class Progress(Protocol):
    """Called with the progress of a download; the command line draws a bar from it."""

    def __call__(self, done_bytes: int, total_bytes: int | None, label: str, /) -> None:
        """Report `done_bytes` of `total_bytes`, which is None when the server did not say how long the file is."""


class Examples(NamedTuple):
    """Samples and what is to be learned about them; both arrays are read-only.

    `x` is uint8 [n, C, H, W] for images, floats [n, …] for features and series, integers [n, L] for token ids. `y` is
    int64 [n] for classes, int64 [n, L] for the next tokens, float32 [n] or [n, K] for values, and 0 or 1 [n, K] for
    labels.
    """

    x: NDArray[Any]
    y: NDArray[Any]

    @property
    def count(self) -> int:  # type: ignore[override]
        """Number of samples. Hides tuple's `count` on purpose: `len` of a named tuple counts its fields."""
        return len(self.y)

    def take(self, chosen: NDArray[np.int64] | slice) -> Examples:
        """Some of them."""
        return Examples(self.x[chosen], self.y[chosen])


class SampleFormat(NamedTuple):
    """What samples look like and how they are standardised: all servers of a run must agree in it."""

    shape: tuple[int, ...]  # of one sample
    dtype: np.dtype[Any]
    task: TaskKind
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def has_images(self) -> bool:
        """Whether samples are images of 8 bits a channel."""
        return self.dtype == np.uint8 and len(self.shape) == 3

    @property
    def no_examples(self) -> Examples:
        """None at all, in this format."""
        targets = {CLASSIFICATION: (), NEXT_TOKEN: self.shape}.get(self.task.name, (self.task.num_outputs,))
        return Examples(np.empty((0, *self.shape), self.dtype), np.empty((0, *targets), np.int64))


class Dataset(NamedTuple):
    """A data set with a fixed split, which depends on no seed."""

    name: str
    train: Examples  # the pool that the servers' shards are drawn from
    validation: Examples  # used neither for training nor for the final test
    test: Examples  # used once, after the last round
    task: TaskKind
    mean: tuple[float, ...]  # over `train`: of pixels / 255 per channel, or of each feature; nothing for token ids
    std: tuple[float, ...]
    groups: NDArray[np.int64] | None = None  # [n] of `train`: the person or place each sample comes from, if known

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Shape of one sample, as networks are made for it."""
        return self.train.x.shape[1:]

    @property
    def format(self) -> SampleFormat:
        """What its samples look like."""
        return SampleFormat(self.sample_shape, self.train.x.dtype, self.task, self.mean, self.std)

    @property
    def has_images(self) -> bool:
        """Whether samples are images of 8 bits a channel."""
        return self.format.has_images

    @property
    def bits_per_sample(self) -> int:
        """Size of one raw sample on a link, in bits."""
        return math.prod(self.sample_shape) * self.train.x.dtype.itemsize * 8


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
    """Says where the data set would be read from now; None if it is not here. Never downloads, never raises."""
    task: str = CLASSIFICATION
    """Name of its task."""
    priced_networks: tuple[str, ...] = ()
    """Networks that the energy prices in `defaults` were measured with; empty if they apply to any network."""
    install: str = ""
    """What to type to get the data set if it is not here; empty if it is downloaded when it is first used."""


def make_dataset(
    name: str,
    *,
    train: Examples,
    validation: Examples,
    test: Examples,
    task: TaskKind,
    groups: NDArray[np.int64] | None = None,
) -> Dataset:
    """Make a `Dataset`: arrays become read-only, means and standard deviations are computed over `train`."""
    for examples in (train, validation, test):
        examples.x.setflags(write=False)
        examples.y.setflags(write=False)
    if groups is not None:
        groups.setflags(write=False)
    mean, std = compute_statistics(train.x)
    if task.name == REGRESSION:
        targets = _compute_feature_statistics(train.y.reshape(len(train.y), -1))
        task = replace(task, target_mean=targets[0], target_std=targets[1])
    return Dataset(name, train, validation, test, task, mean, std, groups)


def is_image(x: NDArray[Any]) -> bool:  # [n, …]
    """Whether these samples are images of 8 bits a channel, [n, C, H, W]."""
    return x.dtype == np.uint8 and x.ndim == 4


def find_feature_axis(num_axes: int) -> int:
    """The axis of [n, …] that numbers the features: channels of images, otherwise the last one."""
    return 1 if num_axes >= 4 else num_axes - 1


Statistics = tuple[tuple[float, ...], tuple[float, ...]]  # means and standard deviations


def compute_statistics(x: NDArray[Any]) -> Statistics:
    """Compute mean and standard deviation of each channel or feature; of token ids there are none."""
    if is_image(x):
        return compute_channel_statistics(x)
    if x.dtype.kind != "f":
        return (), ()
    axis = find_feature_axis(x.ndim)
    return _compute_feature_statistics(np.moveaxis(x, axis, -1).reshape(-1, x.shape[axis]))


def _compute_feature_statistics(table: NDArray[Any]) -> Statistics:  # [n, F]
    """Means and standard deviations of columns, 1 where a column is constant; column by column to save memory."""
    means = [float(column.mean(dtype=np.float64)) for column in table.T]
    spreads = [float(column.std(dtype=np.float64)) for column in table.T]
    # A constant column may come out a rounding error away from 0.
    least = [1e-7 * max(1.0, abs(mean)) for mean in means]
    return tuple(means), tuple(std if std > low else 1.0 for std, low in zip(spreads, least, strict=True))


def compute_channel_statistics(pixels: NDArray[np.uint8]) -> Statistics:
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
