"""Trains and judges S models at once; the stacked form of `hatdfed.server.learner.Learner`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (the name everybody knows)
from numpy.typing import NDArray
from torch import Tensor

from hatdfed.fleets.kernels.blueprint import ImageShape, read_blueprint
from hatdfed.fleets.kernels.optimiser_step import Rates, Step
from hatdfed.fleets.kernels.stages import StageKernels, stage_kernels
from hatdfed.fleets.kernels.vectors import vectors_for
from hatdfed.fleets.stacked.network import Folded, StackedNetwork
from hatdfed.server.learner import Learner
from hatdfed.server.optimisers import Adam, Optimiser, Sgd
from hatdfed.server.work import WorkPlan

# Batches are padded to a multiple of this many samples. On a CPU products of such lengths are summed in the same order
# however long they are, so that a server's numbers do not depend on the company in which it is played.
_PADDING = {"cpu": 16}


class Images(NamedTuple):
    """A pool of images on the device, channels last."""

    x: Tensor  # [n, H, W, C]
    y: Tensor  # [n]


class Models(NamedTuple):
    """S servers' models and what their optimisers remember; rows of larger tensors, changed in place."""

    params: Tensor  # [S, P]
    first: Tensor  # [S, T] or [S, 0]
    second: Tensor  # [S, T] or [S, 0]
    steps: NDArray[np.int64]  # [S]

    def rows(self, servers: slice) -> Models:
        """Some of the servers."""
        return Models(self.params[servers], self.first[servers], self.second[servers], self.steps[servers])


class StackedLearner:
    """The learner's meaning, for many servers at once."""

    def __init__(
        self, learner: Learner, image: ImageShape, device: torch.device, kernels: StageKernels | None = None
    ) -> None:
        blueprint = read_blueprint(learner.module, image)
        shapes = [stage.shape for stage in blueprint.stages]
        self.network = StackedNetwork(blueprint, kernels or stage_kernels(shapes, device))
        self.optimiser = learner.optimiser
        self.num_params, self.num_trainable = learner.num_params, learner.num_trainable
        self._layout = learner.layout
        self._sizes = [shape.numel() for _, shape in self._layout.values()]
        self._moved = learner.moved
        self._device = device

    def fit(
        self,
        models: Models,
        pool: Images,
        plans: Sequence[WorkPlan],
        scale: NDArray[np.float64],
        offsets: Tensor,
    ) -> None:
        """All steps of a round, in place, Eq. (2).

        `scale` [S] stretches each server's steps (push-sum), `offsets` [S, C] are added to its logits (the loss).
        """
        todo = _Schedule.of(plans, self._device)
        seeds = torch.tensor([plan.seed for plan in plans], dtype=torch.int64).to(self._device, non_blocking=True)
        rates = self._rates(models, todo.sizes, scale)
        for step, index in enumerate(todo.indices):
            counts = todo.counts[step]
            batch = _Batch(pool.x[index], pool.y[index], counts, offsets)
            self._step(models, batch, seeds, step, Rates(*rates[step]))
        np.add(models.steps, (todo.sizes > 0).sum(axis=0), out=models.steps)

    @torch.no_grad()
    def fold(self, params: Tensor) -> Folded:
        """The models, ready for `logits`."""
        return self.network.fold(self._views(params))

    @torch.no_grad()
    def logits(self, folded: Folded, x: Tensor, *, exact: bool = True) -> Tensor:
        """[S or 1, B, H, W, C] -> [S, B, classes]."""
        return self.network.logits(folded, x, exact=exact)

    def similarity(self, own: Tensor, others: Tensor) -> Tensor:  # [L, P], [L, P] -> [L]
        """Cosine between pairs of models, parameter tensor by parameter tensor, then averaged."""
        mine, theirs = self._views(own), self._views(others)
        pairs = [(mine[name].flatten(1), theirs[name].flatten(1)) for name in self._moved]
        return torch.stack([F.cosine_similarity(*pair, dim=1) for pair in pairs]).mean(dim=0)

    def _step(self, models: Models, batch: _Batch, seeds: Tensor, step: int, rates: Rates) -> None:
        tensors = self._views(models.params)
        leaves = {name: tensors[name].detach().requires_grad_() for name in self._moved}
        x, y, counts, offsets = batch
        logits, outputs = self.network.train_logits({**tensors, **leaves}, x, counts, seeds, step)
        logits = logits + offsets[:, None]
        losses = F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none").view(y.shape)
        real = torch.arange(y.shape[1], device=y.device) < counts[:, None]
        loss = (torch.where(real, losses, 0.0).sum(dim=1) / counts.clamp(min=1)).sum()
        gradients = torch.autograd.grad(loss, list(leaves.values()))
        active = (counts > 0).float()
        with torch.no_grad():
            self.network.update_statistics(tensors, outputs, counts, active)
            by_place = {self._layout[name][0]: part for name, part in zip(leaves, gradients, strict=True)}
            moved = Step(models.params, by_place, models.first, models.second, rates, active)
            step_in_place(self.optimiser, moved)

    def _rates(self, models: Models, sizes: NDArray[np.int64], scale: NDArray[np.float64]) -> Tensor:  # [steps, 2, S]
        earlier = models.steps + np.cumsum(sizes > 0, axis=0) - (sizes > 0)
        rates = [step_rates(self.optimiser, steps, scale) for steps in earlier]
        stacked = np.stack(rates) if rates else np.zeros((0, 2, len(scale)), dtype=np.float32)
        return torch.from_numpy(stacked).to(self._device, non_blocking=True)

    def _views(self, flat: Tensor) -> Mapping[str, Tensor]:  # [S, P] -> [S, *shape] each
        parts = torch.split_with_sizes(flat, self._sizes, dim=1)
        return {
            name: part.view(len(flat), *shape)
            for (name, (_, shape)), part in zip(self._layout.items(), parts, strict=True)
        }


class _Batch(NamedTuple):
    """What S servers train on in one step."""

    x: Tensor  # [S, B, H, W, C]
    y: Tensor  # [S, B]
    counts: Tensor  # [S] how many of the B are there
    offsets: Tensor  # [S, classes]


class _Schedule(NamedTuple):
    """The batches of S servers, step by step, padded to the largest and a little more."""

    indices: list[Tensor]  # [S, B] into the pool, one for each step
    counts: list[Tensor]  # [S]
    sizes: NDArray[np.int64]  # [steps, S] the same on the host

    @classmethod
    def of(cls, plans: Sequence[WorkPlan], device: torch.device) -> _Schedule:
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
        return cls([index[:, :width] for index, width in zip(on_device, widths, strict=True)], list(counts), sizes)


Vector = NDArray[np.float64]


def step_rates(optimiser: Optimiser, steps: NDArray[np.int64], scale: Vector) -> NDArray[np.float32]:  # [..., S]
    """Both rates of the step that comes after `steps` earlier ones; `scale` shortens or lengthens it (push-sum)."""
    if isinstance(optimiser, Adam):
        step = optimiser.learning_rate * scale / (1 - optimiser.beta_1 ** (steps + 1.0))
        second = 1 / (1 - optimiser.beta_2 ** (steps + 1.0))
    elif isinstance(optimiser, Sgd):
        step, second = optimiser.learning_rate * scale, np.ones(len(steps))
    else:
        raise TypeError(f"no stacked form of {type(optimiser).__name__}")
    return np.stack([step, second]).astype(np.float32)


def step_in_place(optimiser: Optimiser, step: Step) -> None:
    """Move parameters and moments of the servers that are active; the others stay as they are."""
    if isinstance(optimiser, Adam):
        vectors_for(step.params).adam_in_place(optimiser, step)
    elif isinstance(optimiser, Sgd):
        for start, gradient in step.gradients.items():
            place = slice(start, start + gradient[0].numel())
            params, velocity = step.params[:, place], step.first[:, place]
            _sgd_in_place(optimiser, params, gradient.flatten(1), velocity, step.rates, step.active)
    else:
        raise TypeError(f"no stacked form of {type(optimiser).__name__}")


def _sgd_in_place(sgd: Sgd, params: Tensor, gradient: Tensor, velocity: Tensor, rates: Rates, active: Tensor) -> None:
    direction = gradient
    if sgd.momentum:
        direction = velocity * sgd.momentum + gradient
        velocity.copy_(torch.where(active[:, None] > 0, direction, velocity))
    params.sub_(direction * (rates.step * active)[:, None])
