"""S models of one architecture at once: what a stacked fleet asks of them, whoever computes it.

`hatdfed.fleets.kernels.model` is the fast form for networks of a known kind, `lifted` and `looped` are for all others;
`choose_model` picks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hatdfed.errors import HatdfedError
from hatdfed.server.optimisers import Adam, Optimiser, Sgd
from hatdfed.server.work import Batch, WorkPlan


class NotStackableError(HatdfedError):
    """The network has a part that many servers cannot share a tensor program for."""


class Samples(NamedTuple):
    """Samples and their labels on the device, laid out as the model takes them."""

    x: Tensor  # [n, …]
    y: Tensor  # [n]


class ModelRows(NamedTuple):
    """S servers' models and what their optimisers remember; rows of larger tensors, changed in place."""

    params: Tensor  # [S, M]
    first: Tensor  # [S, T], [S, 0], or [S, T, k] of an optimiser of torch
    second: Tensor  # [S, T] or [S, 0]
    steps: NDArray[np.int64]  # [S]


class BytesPerSample(NamedTuple):
    """Memory that one sample takes, for one model."""

    kept: int  # while it lies on the device
    training: int  # on its way forward and back
    judging: int  # in an evaluation
    asked: int = 0  # on its way forward in an evaluation, of a module that is lifted


class ReadyModels(Protocol):
    """S models in the form in which they are evaluated, to be asked many times."""

    def rows(self, servers: slice | Tensor) -> ReadyModels:
        """Some of the models."""

    def logits(self, x: Tensor, *, exact: bool = True) -> Tensor:  # [S or 1, B, …] -> [S, B, classes]
        """What the models answer, in evaluation mode; every model its own samples, or all the same.

        `exact` forbids anything coarser than what training has.
        """


class StackedModel(Protocol):
    """The meaning of `hatdfed.server.learner.Learner`, for S models in one tensor program."""

    @property
    def kernels(self) -> str:
        """Who computes."""

    @property
    def reason(self) -> str | None:
        """Why it is computed so, to follow "because"; None of a network that has kernels of its own."""

    @property
    def num_params(self) -> int:
        """P: numbers of a model that are sent."""

    @property
    def bytes_per_sample(self) -> BytesPerSample:
        """For planning what is done at once."""

    def samples(self, batch: Batch) -> Samples:
        """A batch on the device."""

    def fit(
        self,
        models: ModelRows,
        pool: Samples,
        plans: Sequence[WorkPlan],
        scale: NDArray[np.float64],
        offsets: Tensor,
    ) -> Tensor:  # -> [S]
        """All steps of a round, in place, Eq. (2); servers may have different numbers and sizes of batches.

        `scale` [S] stretches each server's steps (push-sum), `offsets` [S, C] are added to its logits (the loss).
        Returns the mean loss of each server's batches before their steps; nan of a server that has none, or trains
        privately.
        """

    def ready(self, params: Tensor) -> ReadyModels:  # [S, M]
        """The models, ready to be evaluated."""

    def similarity(self, own: Tensor, others: Tensor) -> Tensor:  # [L, P], [L, P] -> [L]
        """Cosine between pairs of models as they are sent, parameter tensor by parameter tensor, then averaged."""


# Batches are padded to a multiple of this many samples. On a CPU products of such lengths are summed in the same order
# however long they are, so that a server's numbers do not depend on the company in which it is played.
_PADDING = {"cpu": 16}


class PaddedBatches(NamedTuple):
    """The batches of S servers, step by step, padded to the largest and a little more."""

    indices: list[Tensor]  # [S, B] into the pool, one for each step
    counts: Tensor  # [steps, S] how many of the B are there
    sizes: NDArray[np.int64]  # [steps, S] the same on the host

    @classmethod
    def of(cls, plans: Sequence[WorkPlan], device: torch.device) -> PaddedBatches:
        """On the device, without waiting for it."""
        num_steps = max((len(plan.batches) for plan in plans), default=0)
        sizes = np.zeros((num_steps, len(plans)), dtype=np.int64)
        for server, plan in enumerate(plans):
            sizes[: len(plan.batches), server] = [len(batch) for batch in plan.batches]
        unit = _PADDING.get(device.type, 1)
        widths = [-(-int(width) // unit) * unit for width in sizes.max(axis=1, initial=0)]
        padded = np.zeros((num_steps, len(plans), max(widths, default=0)), dtype=np.int64)
        for server, plan in enumerate(plans):
            for step, batch in enumerate(plan.batches):
                padded[step, server, : len(batch)] = batch
        on_device = torch.from_numpy(padded).to(device, non_blocking=True)
        counts = torch.from_numpy(sizes).to(device, non_blocking=True)
        return cls([index[:, :width] for index, width in zip(on_device, widths, strict=True)], counts, sizes)

    @property
    def num_steps(self) -> NDArray[np.int64]:
        """[S] how many batches each server has."""
        steps: NDArray[np.int64] = (self.sizes > 0).sum(axis=0)
        return steps

    def average(self, sums: Tensor) -> Tensor:  # [S] -> [S]
        """Means over each server's steps of what was summed over them; nan of a server without steps."""
        return sums / torch.from_numpy(self.num_steps).to(sums.device, non_blocking=True)


class Rates(NamedTuple):
    """What one step of Adam needs to know about each server."""

    step: Tensor  # [S] how far to go along the first moment: learning rate over its bias
    second: Tensor  # [S] what the second moment is multiplied with to undo its bias


Gradients = Mapping[int, Tensor]  # [S, …] of a tensor, by where it starts in a row of parameters


class Step(NamedTuple):
    """Parameters and moments are changed in place; rows may lie apart."""

    params: Tensor  # [S, M]
    gradients: Gradients
    first: Tensor  # [S, T] or [S, 0]
    second: Tensor  # [S, T] or [S, 0]
    rates: Rates
    active: Tensor  # [S] 1, or 0 for a server that stays as it is


def step_rates(
    optimiser: Optimiser, steps: NDArray[np.int64], scale: NDArray[np.float64]
) -> NDArray[np.float32]:  # [..., S]
    """Both rates of the step that comes after `steps` earlier ones; `scale` shortens or lengthens it (push-sum)."""
    if isinstance(optimiser, Adam):
        step = optimiser.learning_rate * scale / (1 - optimiser.beta_1 ** (steps + 1.0))
        second = 1 / (1 - optimiser.beta_2 ** (steps + 1.0))
    elif isinstance(optimiser, Sgd):
        step, second = optimiser.learning_rate * scale, np.ones(len(steps))
    else:
        raise TypeError(f"no stacked form of {type(optimiser).__name__}")
    return np.stack([step, second]).astype(np.float32)


def count_earlier(steps: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.int64]:  # [S], [n, S] -> [n, S]
    """Count the steps that each server has made before each of the n steps of a round."""
    earlier: NDArray[np.int64] = steps + np.cumsum(sizes > 0, axis=0) - (sizes > 0)
    return earlier


def plan_rates(
    optimiser: Optimiser, steps: NDArray[np.int64], sizes: NDArray[np.int64], scale: NDArray[np.float64]
) -> Tensor:  # [S], [steps, S], [S] -> [steps, 2, S]
    """The rates of all steps of a round, in which a server has steps where its batch has a size."""
    rates = [step_rates(optimiser, each, scale) for each in count_earlier(steps, sizes)]
    return torch.from_numpy(np.stack(rates) if rates else np.zeros((0, 2, len(scale)), dtype=np.float32))
