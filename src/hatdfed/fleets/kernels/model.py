"""Networks of convolutional stages and fully connected layers, S models at once, on kernels of our own.

Exact shortcuts, none of which changes a result in real arithmetic:

* a convolution's bias in front of batch norm cancels while training, so it gets no gradient;
* in evaluation batch norm is part of the convolution, and pooling comes before ReLU;
* fully connected layers with nothing but dropout between them are one layer in evaluation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (the usual name)
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable

from hatdfed.fleets.kernels.blueprint import Blueprint, DropoutLayer, LinearLayer, Relu, read_blueprint
from hatdfed.fleets.kernels.round_steps import RoundSteps
from hatdfed.fleets.kernels.stages import StageKernels, apply_head, stage_kernels
from hatdfed.fleets.kernels.torch_stage import StageOutput
from hatdfed.fleets.kernels.vectors import dropout_factors
from hatdfed.fleets.stacked.model import BytesPerSample, ModelRows, PaddedBatches, Samples
from hatdfed.server.learner import Learner
from hatdfed.server.work import Batch, WorkPlan

Tensors = Mapping[str, Tensor]  # by name, [S, *shape]
FLOAT, HALF, INDEX = 4, 2, 8  # bytes


class KernelModel:
    """Trains and judges S models of such a network (`StackedModel`)."""

    def __init__(
        self, learner: Learner, image: Sequence[int], device: torch.device, kernels: StageKernels | None = None
    ) -> None:
        """`kernels` are the fastest that `device` can run, unless they are given."""
        blueprint = read_blueprint(learner.module, image)
        shapes = [stage.shape for stage in blueprint.stages]
        self.network = StackedNetwork(blueprint, kernels or stage_kernels(shapes, device))
        self.kernels = self.network.kernels.name
        self.reason = None
        self.num_params = learner.num_params
        self.bytes_per_sample = _bytes_per_sample(blueprint, math.prod(image), device)
        self._optimiser = learner.optimiser
        self._layout = learner.layout
        self._sizes = [shape.numel() for _, shape in self._layout.values()]
        self._moved = learner.moved
        self._compared = learner.compared
        self._device = device

    def samples(self, batch: Batch) -> Samples:
        """Images, channels last."""
        x = batch.x.permute(0, 2, 3, 1).contiguous().to(self._device)
        return Samples(x, batch.y.to(self._device))

    def fit(
        self,
        models: ModelRows,
        pool: Samples,
        plans: Sequence[WorkPlan],
        scale: NDArray[np.float64],
        offsets: Tensor,
    ) -> Tensor:  # -> [S]
        """All steps of a round, in place."""
        todo = PaddedBatches.of(plans, self._device)
        seeds = torch.tensor([plan.seed for plan in plans], dtype=torch.int64).to(self._device, non_blocking=True)
        steps = RoundSteps(self._optimiser, models, todo.sizes, scale)
        losses = models.params.new_zeros(len(plans))  # [S] summed over steps
        active, divisors = (todo.counts > 0).float(), todo.counts.clamp(min=1)  # [steps, S] each
        for step, index in enumerate(todo.indices):
            counts = _Counts(todo.counts[step], divisors[step], active[step])
            batch = _Batch(pool.x[index], pool.y[index], counts, offsets)
            losses += self._step(models, batch, seeds, step, steps)
        np.add(models.steps, todo.num_steps, out=models.steps)
        return todo.average(losses)

    @torch.no_grad()
    def ready(self, params: Tensor) -> Folded:  # [S, M]
        """The models with everything folded that can be."""
        return self.network.fold(self._views(params))

    def similarity(self, own: Tensor, others: Tensor) -> Tensor:  # [L, P], [L, P] -> [L]
        """Cosine between pairs of models, parameter tensor by parameter tensor, then averaged."""
        pairs = [(own[:, start:stop], others[:, start:stop]) for start, stop in self._compared]
        return torch.stack([F.cosine_similarity(*pair, dim=1) for pair in pairs]).mean(dim=0)

    def _step(self, models: ModelRows, batch: _Batch, seeds: Tensor, step: int, steps: RoundSteps) -> Tensor:  # -> [S]
        """One step in place; returns the mean loss of each server's batch before it."""
        tensors = self._views(models.params)
        leaves = {name: tensors[name].detach().requires_grad_() for name in self._moved}
        x, y, counts, offsets = batch
        logits, outputs = self.network.train_logits({**tensors, **leaves}, x, counts.real, seeds, step)
        logits = logits + offsets[:, None]
        losses = F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none").view(y.shape)
        is_real = torch.arange(y.shape[1], device=y.device) < counts.real[:, None]
        by_server = torch.where(is_real, losses, 0.0).sum(dim=1) / counts.divisor
        gradients = torch.autograd.grad(by_server.sum(), list(leaves.values()))
        with torch.no_grad():
            self.network.update_statistics(tensors, outputs, counts.real, counts.active)
            by_place = {self._layout[name][0]: part for name, part in zip(leaves, gradients, strict=True)}
            steps.take(step, by_place, counts.active)
        return by_server.detach()

    def _views(self, flat: Tensor) -> Mapping[str, Tensor]:  # [S, M] -> [S, *shape] each
        parts = torch.split_with_sizes(flat, self._sizes, dim=1)
        return {
            name: part.view(len(flat), *shape)
            for (name, (_, shape)), part in zip(self._layout.items(), parts, strict=True)
        }


class _Counts(NamedTuple):
    """How many samples S servers have in one step."""

    real: Tensor  # [S] others are padding
    divisor: Tensor  # [S] the same, but at least 1
    active: Tensor  # [S] 1, or 0 for a server without samples


class _Batch(NamedTuple):
    """What S servers train on in one step."""

    x: Tensor  # [S, B, H, W, C]
    y: Tensor  # [S, B]
    counts: _Counts
    offsets: Tensor  # [S, classes]


class Folded(NamedTuple):
    """S models, ready to be asked many questions."""

    network: StackedNetwork
    weights: tuple[Tensor, ...]  # of the stages, batch norm folded in
    biases: tuple[Tensor, ...]
    head: tuple[tuple[Tensor, Tensor], ...]  # [S, out, in] and [S, out], a ReLU between each two

    def rows(self, servers: slice | Tensor) -> Folded:
        """Some of the models."""
        return Folded(
            self.network,
            tuple(weight[servers] for weight in self.weights),
            tuple(bias[servers] for bias in self.biases),
            tuple((weight[servers], bias[servers]) for weight, bias in self.head),
        )

    @torch.no_grad()
    def logits(self, x: Tensor, *, exact: bool = True) -> Tensor:
        """[S or 1, B, H, W, C] -> [S, B, classes]."""
        return self.network.logits(self, x, exact=exact)


class StackedNetwork:
    """Pure functions of stacked tensors."""

    def __init__(self, blueprint: Blueprint, kernels: StageKernels) -> None:
        self.blueprint = blueprint
        self.kernels = kernels

    def train_logits(
        self, tensors: Tensors, x: Tensor, counts: Tensor, seeds: Tensor, step: int
    ) -> tuple[Tensor, list[StageOutput]]:  # [S, B, H, W, C], [S], [S] -> [S, B, classes]
        """Logits that can be differentiated, and the statistics of every batch norm."""
        outputs = []
        for index, stage in enumerate(self.blueprint.stages):
            scale, shift = tensors[f"{stage.norm}.weight"], tensors[f"{stage.norm}.bias"]
            weight = tensors[stage.weight]
            outputs.append(self.kernels.train(index, x, weight, scale, shift, counts, stage.epsilon))
            x = outputs[-1].pooled
        h = x.permute(0, 1, 4, 2, 3).flatten(2)  # features in the order of torch's Flatten
        for layer in self.blueprint.head:
            if isinstance(layer, LinearLayer):
                h = _linear(h, tensors[layer.weight], None if layer.bias is None else tensors[layer.bias])
            elif isinstance(layer, Relu):
                h = h.relu()
            else:
                h = _drop_units(h, layer, seeds, step)
        return h, outputs

    def update_statistics(
        self, tensors: Tensors, outputs: list[StageOutput], counts: Tensor, active: Tensor
    ) -> None:  # [S], [S]
        """Batch norm's running mean and variance, in place; those of servers without data stay."""
        for stage, output in zip(self.blueprint.stages, outputs, strict=True):
            height, width = stage.shape.convolved
            pixels = (counts * (height * width)).clamp(min=2)[:, None]
            mean = output.mean if stage.bias is None else output.mean + tensors[stage.bias]
            variance = output.variance * (pixels / (pixels - 1))
            share = (stage.momentum * active)[:, None]
            tensors[f"{stage.norm}.running_mean"].lerp_(mean, share)
            tensors[f"{stage.norm}.running_var"].lerp_(variance, share)

    def fold(self, tensors: Tensors) -> Folded:
        """The models as evaluation wants them."""
        weights, biases = [], []
        for stage in self.blueprint.stages:
            mean, variance = (tensors[f"{stage.norm}.running_{what}"] for what in ("mean", "var"))
            scale = tensors[f"{stage.norm}.weight"] * torch.rsqrt(variance + stage.epsilon)
            centre = mean if stage.bias is None else mean - tensors[stage.bias]
            weights.append(tensors[stage.weight] * scale[:, :, None, None, None])
            biases.append(tensors[f"{stage.norm}.bias"] - centre * scale)
        return Folded(self, tuple(weights), tuple(biases), tuple(self._fold_head(tensors)))

    def logits(self, folded: Folded, x: Tensor, *, exact: bool) -> Tensor:  # [S or 1, B, H, W, C] -> [S, B, classes]
        """What the models answer, in evaluation mode."""
        first, *others = folded.head
        if folded.weights:
            h = self.kernels.infer(x, folded.weights, folded.biases, first, exact=exact)
        else:
            h = apply_head(x, first)
        for weight, bias in others:
            h = torch.baddbmm(bias[:, None], h.relu(), weight.transpose(1, 2))
        return h

    def _fold_head(self, tensors: Tensors) -> list[tuple[Tensor, Tensor]]:
        """One (weight, bias) for every run of linear layers; the first takes features with channels last."""
        runs: list[list[LinearLayer]] = [[]]
        for layer in self.blueprint.head:
            if isinstance(layer, Relu):
                runs.append([])
            elif isinstance(layer, LinearLayer):
                runs[-1].append(layer)
        head = [_product(run, tensors) for run in runs]
        weight, bias = head[0]
        channels, height, width = self.blueprint.features
        in_order = weight.view(*weight.shape[:2], channels, height, width).permute(0, 1, 3, 4, 2).flatten(2)
        return [(in_order, bias), *head[1:]]


def _product(layers: list[LinearLayer], tensors: Tensors) -> tuple[Tensor, Tensor]:
    """Fully connected layers one after another as a single one, multiplied from the narrow end."""
    last = layers[-1]
    weight = tensors[last.weight]
    bias = weight.new_zeros(weight.shape[:2]) if last.bias is None else tensors[last.bias]
    for layer in reversed(layers[:-1]):
        if layer.bias is not None:
            bias = bias + torch.bmm(weight, tensors[layer.bias][:, :, None])[:, :, 0]
        weight = torch.bmm(weight, tensors[layer.weight])
    return weight, bias


class _Linear(torch.autograd.Function):
    """Torch's own gradient of a batched product comes transposed, and putting it in order costs a pass over it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:  # [S, B, in], [S, out, in], [S, out]
        ctx.save_for_backward(x, weight)
        return _products(x, weight.transpose(1, 2)).add_(bias[:, None])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        to_x = _products(gradient, weight) if ctx.needs_input_grad[0] else None
        return to_x, _products(gradient.transpose(1, 2), x), gradient.sum(dim=1)


def _products(a: Tensor, b: Tensor) -> Tensor:  # [S, n, k], [S, k, m] -> [S, n, m]
    """One matrix product for each server. A CPU shares out single products among its cores, not batches of them."""
    if a.device.type != "cpu":
        return torch.bmm(a, b)
    out = a.new_empty(a.shape[0], a.shape[1], b.shape[2])
    for server in range(len(a)):
        torch.mm(a[server], b[server], out=out[server])
    return out


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:  # [S, B, in], [S, out, in] -> [S, B, out]
    bias = weight.new_zeros(weight.shape[:2]) if bias is None else bias
    result: Tensor = _Linear.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return result


def _drop_units(x: Tensor, layer: DropoutLayer, seeds: Tensor, step: int) -> Tensor:
    place = {"step": step, "layer": layer.layer, "batch": x.shape[1], "units": x.shape[2]}
    return x * dropout_factors(x, seeds, **place, probability=layer.probability)


def _bytes_per_sample(blueprint: Blueprint, pixels: int, device: torch.device) -> BytesPerSample:
    return BytesPerSample(
        pixels * FLOAT, _count_training_bytes(blueprint, pixels), _count_judging_bytes(blueprint, pixels, device)
    )


def _count_training_bytes(blueprint: Blueprint, pixels: int) -> int:
    """What one sample leaves behind on its way forward and back."""
    numbers = pixels + INDEX
    for stage in blueprint.stages:
        convolved = stage.shape.convolved[0] * stage.shape.convolved[1] * stage.shape.channels_out
        pooled = stage.shape.pooled[0] * stage.shape.pooled[1] * stage.shape.channels_out
        narrow = stage.shape.channels_in <= 4  # recomputed, not kept
        numbers += (0 if narrow else 2 * convolved) + 2 * pooled + pooled // 4
    units = [blueprint.features[0] * blueprint.features[1] * blueprint.features[2]]
    units += [_OUTPUTS for layer in blueprint.head if isinstance(layer, LinearLayer)]
    return FLOAT * (numbers + 3 * sum(units))


def _count_judging_bytes(blueprint: Blueprint, pixels: int, device: torch.device) -> int:
    """What one image takes in one model's evaluation; C on a CPU keeps nothing but the answer."""
    if device.type == "cpu":
        return FLOAT * (pixels + _OUTPUTS)
    numbers = pixels
    for stage in blueprint.stages:
        numbers += stage.shape.pooled[0] * stage.shape.pooled[1] * stage.shape.channels_out
    return HALF * numbers + FLOAT * _OUTPUTS


_OUTPUTS = 128  # of a layer behind the first: a guess that is never far off against the features
