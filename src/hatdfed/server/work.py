"""The data of one server in one round, and where they come from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, overload

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from hatdfed.core.fleet import FinalAccuracy, measured_accuracy

Indices = NDArray[np.int64]


class Batch(NamedTuple):
    """Images and their labels."""

    x: Tensor  # [n, C, H, W]
    y: Tensor  # [n]


class HeldOut(NamedTuple):
    """Test data, for after the last round, and what the data of each server consist of."""

    data: Batch
    label_shares: NDArray[np.float64]  # [N, classes] of each server's own images

    def of_servers(self, first: int, last: int) -> HeldOut:
        """The same for servers `first` to `last` − 1."""
        return HeldOut(self.data, self.label_shares[first:last])

    def accuracy(self, correct: NDArray[np.bool_]) -> FinalAccuracy:  # [N, n]
        """From which of the samples each server answers rightly."""
        return measured_accuracy(correct, self.data.y.numpy(), self.label_shares)


class Work(NamedTuple):
    """The data of one server in one round. The test set is not part of it."""

    batches: Sequence[Batch]  # all passes over the round's data, in order
    num_samples: int  # |D_k|
    devices_online: int
    probe: Batch  # a few of the server's own images, to evaluate received models on
    validation: Batch
    seed: int  # for dropout
    label_counts: Tensor | None = None  # [C] number of the server's images of each label; None: unknown


class LazyBatches(Sequence[Batch]):
    """Batches that are gathered on access, because all passes at once would need too much memory."""

    def __init__(self, take: Callable[[Indices], Batch], chosen: Sequence[Indices]) -> None:
        self._take = take
        self._chosen = chosen

    def __len__(self) -> int:
        return len(self._chosen)

    @overload
    def __getitem__(self, place: int) -> Batch: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Batch]: ...
    def __getitem__(self, place: int | slice) -> Batch | Sequence[Batch]:
        if isinstance(place, slice):
            return LazyBatches(self._take, self._chosen[place])
        return self._take(self._chosen[place])


class WorkPlan(NamedTuple):
    """The work of a round as indices into the pool of images that many servers share."""

    batches: tuple[Indices, ...]
    num_samples: int
    devices_online: int
    probe: Indices
    seed: int


class DataSource(Protocol):
    """Provides one server's work."""

    @property
    def validation(self) -> Batch:
        """Images that accuracy is measured on."""

    def work(self, t: int) -> Work:
        """Return the server's work of round t."""


class PooledSource(DataSource, Protocol):
    """A source whose images are in a shared pool, so that many servers' work can be gathered at once."""

    @property
    def pool(self) -> Batch:
        """All training images, of all servers."""

    @property
    def label_counts(self) -> Tensor:
        """[C] number of images of each label that the server owns."""

    @property
    def largest_batch(self) -> int:
        """Upper bound on the number of images in a batch."""

    def plan(self, t: int) -> WorkPlan:
        """Return the server's work of round t, as indices into the pool."""
