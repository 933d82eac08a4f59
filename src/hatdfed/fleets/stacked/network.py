"""One architecture, S models: logits in training mode, and evaluation with everything folded that can be.

Exact shortcuts, none of which changes a result in real arithmetic:

* a convolution's bias in front of batch norm cancels while training, so it gets no gradient;
* in evaluation batch norm is part of the convolution, and pooling comes before ReLU;
* fully connected layers with nothing but dropout between them are one layer in evaluation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hatdfed.fleets.kernels.blueprint import Blueprint, Dropout, Linear, Relu
from hatdfed.fleets.kernels.stages import StageKernels, apply_head
from hatdfed.fleets.kernels.torch_stage import StageOutput
from hatdfed.server.dropout import make_keep_mask

Tensors = Mapping[str, Tensor]  # by name, [S, *shape]


class Folded(NamedTuple):
    """S models, ready to be asked many questions."""

    weights: tuple[Tensor, ...]  # of the stages, batch norm folded in
    biases: tuple[Tensor, ...]
    head: tuple[tuple[Tensor, Tensor], ...]  # [S, out, in] and [S, out], a ReLU between each two

    def rows(self, servers: slice | Tensor) -> Folded:
        """Some of the models."""
        return Folded(
            tuple(weight[servers] for weight in self.weights),
            tuple(bias[servers] for bias in self.biases),
            tuple((weight[servers], bias[servers]) for weight, bias in self.head),
        )


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
            if isinstance(layer, Linear):
                h = _linear(h, tensors[layer.weight], None if layer.bias is None else tensors[layer.bias])
            elif isinstance(layer, Relu):
                h = h.relu()
            else:
                h = _dropped(h, layer, seeds, step)
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
        return Folded(tuple(weights), tuple(biases), tuple(self._folded_head(tensors)))

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

    def _folded_head(self, tensors: Tensors) -> list[tuple[Tensor, Tensor]]:
        """One (weight, bias) for every run of linear layers; the first takes features with channels last."""
        runs: list[list[Linear]] = [[]]
        for layer in self.blueprint.head:
            if isinstance(layer, Relu):
                runs.append([])
            elif isinstance(layer, Linear):
                runs[-1].append(layer)
        head = [_product(run, tensors) for run in runs]
        weight, bias = head[0]
        channels, height, width = self.blueprint.features
        in_order = weight.view(*weight.shape[:2], channels, height, width).permute(0, 1, 3, 4, 2).flatten(2)
        return [(in_order, bias), *head[1:]]


def _product(layers: list[Linear], tensors: Tensors) -> tuple[Tensor, Tensor]:
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


def _dropped(x: Tensor, layer: Dropout, seeds: Tensor, step: int) -> Tensor:
    kept = make_keep_mask(
        seeds, step=step, layer=layer.layer, batch=x.shape[1], units=x.shape[2], probability=layer.probability
    )
    return x * (kept.to(x.dtype) / (1 - layer.probability))
