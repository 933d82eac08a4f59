"""The optimiser's steps of one round for S servers at once, whatever the optimiser is."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hatdfed.fleets.kernels.vectors import step_in_place
from hatdfed.fleets.stacked.model import Gradients, ModelRows, Rates, Step, count_earlier, plan_rates
from hatdfed.server.optimisers import Optimiser, OptimiserState, TorchOptimiser


class RoundSteps:
    """Takes the steps of a round in place, one after another; a server has one where its batch has a size."""

    def __init__(
        self, optimiser: Optimiser, models: ModelRows, sizes: NDArray[np.int64], scale: NDArray[np.float64]
    ) -> None:
        """`sizes` [steps, S] are those of the batches, `scale` [S] stretches each server's steps (push-sum)."""
        self._optimiser, self._models, self._sizes = optimiser, models, sizes
        self._device = models.params.device
        if isinstance(optimiser, TorchOptimiser):
            self._earlier = count_earlier(models.steps, sizes)
            self._scale = self._put(scale.astype(np.float32))
        else:
            self._rates = plan_rates(optimiser, models.steps, sizes, scale).to(self._device, non_blocking=True)

    @torch.no_grad()
    def take(self, step: int, gradients: Gradients, active: Tensor) -> None:
        """Take one of the steps; servers that are not active [S] stay as they are."""
        models = self._models
        if not isinstance(self._optimiser, TorchOptimiser):
            moments = (models.first, models.second)
            rates = Rates(*self._rates[step])
            step_in_place(self._optimiser, Step(models.params, gradients, *moments, rates, active))
            return
        # Torch counts the steps of all that it moves at once: servers go together that have made equally many.
        has_batch, earlier = self._sizes[step] > 0, self._earlier[step]
        for count in np.unique(earlier[has_batch]).tolist():
            rows = self._put(np.flatnonzero(has_batch & (earlier == count)))
            for start, gradient in gradients.items():
                self._move(self._optimiser, rows, start, gradient[rows].flatten(1), count)

    def _move(self, optimiser: TorchOptimiser, rows: Tensor, start: int, gradient: Tensor, count: int) -> None:
        """One tensor of these servers, which have made `count` steps before."""
        models, place = self._models, slice(start, start + gradient.shape[1])
        before = models.params[rows, place]
        state = OptimiserState(count, models.first[rows, place], models.second[rows])
        moved, after = optimiser.step(before, gradient, state)
        models.params[rows, place] = torch.lerp(before, moved, self._scale[rows, None])
        models.first[rows, place] = after.first

    def _put(self, array: NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(array).to(self._device, non_blocking=True)
