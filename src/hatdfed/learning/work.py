"""What a server has to work with in one round."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from torch import Tensor


class Batch(NamedTuple):
    """Images and their labels."""

    x: Tensor  # [n, C, H, W]
    y: Tensor  # [n]


class Work(NamedTuple):
    """What a server knows in one round. The test set is not in it."""

    batches: tuple[Batch, ...]  # all passes over the round's data, in order
    num_samples: int  # |D_k|
    devices_online: int
    probe: Batch  # a few of the server's own images, to judge models on
    validation: Batch
    seed: int  # for dropout


class DataSource(Protocol):
    """Where one server's work comes from."""

    @property
    def validation(self) -> Batch:
        """What accuracies are measured on."""

    def work(self, t: int) -> Work:
        """The server's data of round t."""
