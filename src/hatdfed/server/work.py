"""What a server has to work with in one round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, overload

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Indices = NDArray[np.int64]


class Batch(NamedTuple):
    """Images and their labels."""

    x: Tensor  # [n, C, H, W]
    y: Tensor  # [n]


class Work(NamedTuple):
    """What a server knows in one round. The test set is not in it."""

    batches: Sequence[Batch]  # all passes over the round's data, in order
    num_samples: int  # |D_k|
    devices_online: int
    probe: Batch  # a few of the server's own images, to judge models on
    validation: Batch
    seed: int  # for dropout
    label_counts: Tensor | None = None  # [C] of all images that the server owns; None: not known


class Gathered(Sequence[Batch]):
    """Batches that are put together when they are asked for: all passes at once would take room for nothing."""

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
            return Gathered(self._take, self._chosen[place])
        return self._take(self._chosen[place])


class WorkPlan(NamedTuple):
    """The same before any image is touched: which images of a pool that many servers share."""

    batches: tuple[Indices, ...]
    num_samples: int
    devices_online: int
    probe: Indices
    seed: int


class DataSource(Protocol):
    """Where one server's work comes from."""

    @property
    def validation(self) -> Batch:
        """What accuracies are measured on."""

    def work(self, t: int) -> Work:
        """The server's data of round t."""


class PooledSource(DataSource, Protocol):
    """A source whose images lie in a pool, so that many servers' work can be gathered at once."""

    @property
    def pool(self) -> Batch:
        """All training images, of all servers."""

    @property
    def label_counts(self) -> Tensor:
        """[C] images of each label that the server owns."""

    @property
    def largest_batch(self) -> int:
        """No batch of any round has more images."""

    def plan(self, t: int) -> WorkPlan:
        """The server's work of round t, as indices into the pool."""
