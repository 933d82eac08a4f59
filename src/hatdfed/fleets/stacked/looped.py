"""Any module, one server after another on the device of the fleet: the learner's own code on rows of tensors.

For modules that cannot be lifted, and on a CPU for those whose layers keep it busy with a single server. On a CPU a
model is trained to the same bits as with mailboxes, unless convolutions get their images with channels last, which is
faster and adds in another order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (the usual name)
from numpy.typing import NDArray
from torch import Tensor

from hatdfed.fleets.stacked.model import BytesPerSample, ModelRows, ReadyModels, Samples
from hatdfed.server.learner import Learner
from hatdfed.server.optimisers import OptimiserState
from hatdfed.server.work import Batch, Indices, LazyBatches, WorkPlan


class LoopedModel:
    """Trains and evaluates S models of any module, one by one (`StackedModel`)."""

    kernels = "looped"

    def __init__(
        self,
        learner: Learner,
        device: torch.device,
        sample: BytesPerSample,
        reason: str,
        *,
        channels_last: bool = False,
    ) -> None:
        self.learner = learner.on_device(device)
        self.num_params = learner.num_params
        self.bytes_per_sample = sample
        self.reason = reason
        self._device = device
        self._channels_last = channels_last

    def samples(self, batch: Batch) -> Samples:
        """As the module takes them."""
        x = batch.x.to(self._device)
        return Samples(put_channels_last(x) if self._channels_last else x, batch.y.to(self._device))

    def fit(
        self,
        models: ModelRows,
        pool: Samples,
        plans: Sequence[WorkPlan],
        scale: NDArray[np.float64],
        offsets: Tensor,
    ) -> Tensor:  # -> [S]
        """All steps of a round, in place; moments are overwritten where they lie."""
        mean_losses = torch.full((len(plans),), torch.nan, device=self._device)

        def take(chosen: Indices) -> Batch:
            index = torch.from_numpy(chosen).to(self._device)
            return Batch(pool.x[index], pool.y[index])

        for row, plan in enumerate(plans):
            if not plan.batches:
                continue
            losses: list[Tensor] = []
            state = OptimiserState(int(models.steps[row]), models.first[row], models.second[row])
            models.params[row], state = self.learner.fit(
                models.params[row],
                state,
                LazyBatches(take, plan.batches),
                seed=plan.seed,
                step_scale=float(scale[row]),
                offset=offsets[row],
                spend=True,
                on_loss=losses.append,
            )
            models.steps[row] = state.step
            if losses:
                mean_losses[row] = torch.stack(losses).mean()
        return mean_losses

    def ready(self, params: Tensor) -> ReadyModels:  # [S, M]
        """The models as they are."""
        return LoopedModels(self.learner, params, self._channels_last)

    def similarity(self, own: Tensor, others: Tensor) -> Tensor:  # [L, P], [L, P] -> [L]
        """Cosine between pairs of models as they are sent, parameter tensor by parameter tensor, then averaged."""
        pairs = [(own[:, start:stop], others[:, start:stop]) for start, stop in self.learner.compared]
        return torch.stack([F.cosine_similarity(*pair, dim=1) for pair in pairs]).mean(dim=0)


class LoopedModels(NamedTuple):
    """S models, evaluated one after another."""

    learner: Learner
    params: Tensor  # [S, M]
    channels_last: bool

    def rows(self, servers: slice | Tensor) -> LoopedModels:
        """Some of the models."""
        return self._replace(params=self.params[servers])

    def logits(self, x: Tensor, *, exact: bool = True) -> Tensor:
        """[S or 1, B, …] -> [S, B, …]."""
        parts = [put_channels_last(part) if self.channels_last else part for part in x]
        samples = parts * len(self.params) if len(parts) == 1 else parts
        return torch.stack([self.learner.logits(*pair) for pair in zip(self.params, samples, strict=True)])


def put_channels_last(images: Tensor) -> Tensor:  # [n, C, H, W]
    """The same images, in the order of memory that convolutions are fastest with.

    With one channel both orders are the same numbers, and torch must be told which one is meant.
    """
    images = images.contiguous(memory_format=torch.channels_last)
    _, channels, height, width = images.shape
    return images.as_strided(images.shape, (channels * height * width, 1, channels * width, channels))
