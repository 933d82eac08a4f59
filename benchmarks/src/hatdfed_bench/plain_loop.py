"""The loop that one would write by hand: modules, `torch.optim.Adam`, averaged state dicts, one server after another.

It is what a fleet's speed is held against, so it has what a careful author would give it: channels-last images and
modules, ReLU in place, torch's fused optimiser, evaluation in batches of 100 in inference mode with
batch norm fused into the convolutions by torch's own utility. Nothing in a round waits for a GPU before its end.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from hatdfed.core.links import Topology
from hatdfed.server.tasks import Classification, Task
from hatdfed.server.work import Batch, PooledSource

EVALUATION_BATCH = 100


class PlainLoop:
    """N servers as N modules."""

    def __init__(
        self,
        modules: Sequence[nn.Module],
        sources: Sequence[PooledSource],
        device: torch.device,
        task: Task = Classification(),  # noqa: B008 (a frozen value)
    ) -> None:
        self._device = device
        self._task = task
        self._sources = sources
        self._modules = [_placed(module, device) for module in modules]
        self._optimisers = [torch.optim.Adam(module.parameters(), lr=1e-3, fused=True) for module in self._modules]
        self._pool = self._placed(sources[0].pool)
        self._validation = self._placed(sources[0].validation)

    def run_round(self, t: int, topology: Topology) -> list[float]:
        """Train, exchange, merge by importance, measure; the accuracies."""
        plans = [source.plan(t) for source in self._sources]
        for module, optimiser, plan in zip(self._modules, self._optimisers, plans, strict=True):
            module.train()
            for indices in plan.batches:
                x, y = self._take(indices)
                optimiser.zero_grad()
                self._task.losses(module(x), y).mean().backward()  # type: ignore[no-untyped-call]
                optimiser.step()
        samples = [plan.num_samples for plan in plans]
        merged = [self._merged(i, topology.senders(i), plans[i].probe, samples) for i in range(len(plans))]
        for module, state in zip(self._modules, merged, strict=True):
            module.load_state_dict(state)
        correct: list[float] = torch.stack([self._count_correct(module) for module in self._modules]).tolist()
        return [count / len(self._validation.y) for count in correct]

    @torch.inference_mode()
    def _merged(self, i: int, senders: Sequence[int], probe: object, samples: list[int]) -> dict[str, Tensor]:
        """Server i's model and those it received, weighted by loss on the probe and by data volume (β = 0.4)."""
        held = [i, *senders]
        x, y = self._take(probe)
        losses = torch.stack([self._task.losses(self._modules[j].eval()(x), y) for j in held])
        quality = torch.softmax(-losses.square().mean(dim=1).sqrt(), dim=0)
        volume = torch.tensor([samples[j] / sum(samples[k] for k in held) for j in held])
        weights = 0.4 * quality + 0.6 * volume.to(self._device, non_blocking=True)
        states = [self._modules[j].state_dict() for j in held]
        merged = {}
        for name, own in states[0].items():
            if own.is_floating_point():
                merged[name] = torch.tensordot(weights, torch.stack([state[name] for state in states]), dims=1)
            else:
                merged[name] = own
        return merged

    @torch.inference_mode()
    def _count_correct(self, module: nn.Module) -> Tensor:
        module = _fused(module)
        x, y = self._validation
        parts = zip(torch.split(x, EVALUATION_BATCH), torch.split(y, EVALUATION_BATCH), strict=True)
        return torch.stack([self._task.scores(module(some), labels).sum() for some, labels in parts]).sum()

    def _take(self, indices: object) -> tuple[Tensor, Tensor]:
        chosen = torch.as_tensor(indices, device=self._device)
        return _channels_last(self._pool.x[chosen]), self._pool.y[chosen]

    def _placed(self, batch: Batch) -> Batch:
        return Batch(_channels_last(batch.x.to(self._device)), batch.y.to(self._device))


def _placed(module: nn.Module, device: torch.device) -> nn.Module:
    for layer in module.modules():
        if isinstance(layer, nn.ReLU):
            layer.inplace = True
    placed: nn.Module = module.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    return placed


def _fused(module: nn.Module) -> nn.Module:
    """For evaluation: convolutions that have swallowed their batch norms, where the module is a plain sequence."""
    module.eval()
    if not isinstance(module, nn.Sequential):
        return module
    layers = list(module)
    for place, layer in enumerate(layers):
        before = layers[place - 1]
        if isinstance(layer, nn.BatchNorm2d) and isinstance(before, nn.Conv2d):
            layers[place - 1] = fuse_conv_bn_eval(before, layer)
            layers[place] = nn.Identity()
    return nn.Sequential(*layers)


def _channels_last(x: Tensor) -> Tensor:
    """With one channel both layouts are the same numbers, and torch must be told which one is meant."""
    if x.ndim != 4:
        return x
    x = x.contiguous(memory_format=torch.channels_last)
    _, channels, height, width = x.shape
    return x.as_strided(x.shape, (channels * height * width, 1, channels * width, channels))
