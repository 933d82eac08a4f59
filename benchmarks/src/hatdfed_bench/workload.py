"""The work that is timed: one round of hat-dfed on one of the built-in networks, and its nominal arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from hatdfed.core.task import CLASSIFICATION, NEXT_TOKEN, TaskKind
from hatdfed.data.datasets.base import Dataset, Examples
from hatdfed.randomness import stream
from hatdfed.server.flops import count_forward_flops
from hatdfed.server.networks import Shape, find_network, paper_cnn
from hatdfed.setup.config import Config
from hatdfed.setup.layers import resolve

SAMPLES, PASSES, PROBE, VALIDATION = 60, 2, 16, 1000
LINKS_PER_SERVER = 1.2
IMAGES_PER_SERVER = 800
CLASSES = 10


@dataclass(frozen=True)
class Workload:
    """W (`fashion-mnist`), W-cifar (`cifar-10`) or another network: samples of that shape, not the real ones."""

    name: str
    shape: Shape  # of a sample: an image, a series of steps and features, or token ids
    network: str = "paper-cnn"
    validation: int = VALIDATION  # samples

    @property
    def task(self) -> TaskKind:
        """Next tokens of sequences, classes of everything else."""
        return TaskKind(NEXT_TOKEN if len(self.shape) == 1 else CLASSIFICATION, CLASSES)

    def dataset(self, seed: int = 0) -> Dataset:
        """Random samples; how long a round takes does not depend on what is in them."""
        rng = stream(seed, "bench", self.name)

        def examples(count: int) -> Examples:
            if len(self.shape) == 1:
                tokens = rng.integers(0, CLASSES, size=(count, self.shape[0] + 1))
                return Examples(tokens[:, :-1], tokens[:, 1:])
            labels = rng.integers(0, CLASSES, size=count)
            if len(self.shape) == 2:
                return Examples(rng.normal(size=(count, *self.shape)).astype(np.float32), labels)
            return Examples(rng.integers(0, 256, size=(count, *self.shape), dtype=np.uint8), labels)

        train, validation, test = (examples(count) for count in (20_000, self.validation, 100))
        channels = {1: 0, 2: self.shape[-1]}.get(len(self.shape), self.shape[0])
        half = (0.5,) * channels
        return Dataset(self.name, train, validation, test, self.task, mean=half, std=half)

    def make_module(self) -> nn.Module:
        """One server's network."""
        return find_network(self.network)(self.shape, CLASSES)

    def config(self, servers: int, *, rounds: int, seed: int = 0, method: str = "hat-dfed", **settings: Any) -> Config:
        """Settings of the run: every device online, 1.2 links a server; `settings` replace others."""
        return resolve(
            {
                "method": method,
                "dataset": "synthetic",  # stands for `dataset()`
                "seed": seed,
                "servers": servers,
                "rounds": rounds,
                "link_share": round(LINKS_PER_SERVER * servers) / (servers * (servers - 1)),
                "device_online_probability": 1.0,
                "samples_per_round": SAMPLES,
                "local_passes": PASSES,
                "probe_size": PROBE,
                "validation_images": self.validation,
                "images_per_server": IMAGES_PER_SERVER,
                "network": self.network,
                **settings,
            }
        )

    def round_flops(self, servers: int) -> float:
        """Nominal floating-point operations of a round: what it takes without any shortcut.

        A trained sample costs three forward passes. Models are judged on a probe by their owner and by every receiver.
        """
        judged = 1 + round(LINKS_PER_SERVER * servers) / servers
        return servers * self._forward_flops() * (3 * SAMPLES * PASSES + PROBE * judged + self.validation)

    def _forward_flops(self) -> float:
        if self.network == "paper-cnn":
            return forward_flops(paper_cnn(self.shape, CLASSES), self.shape)
        return count_flops(self.make_module(), self.shape)


W = Workload("fashion-mnist", (1, 28, 28))
W_CIFAR = Workload("cifar-10", (3, 32, 32))
FIELD = tuple(  # networks that the field uses, each on samples of a size that is usual for it; quick ones first
    Workload(network, shape, network, validation=200)
    for network, shape in (
        ("mlp", (1, 28, 28)),
        ("lenet-group-norm", (3, 32, 32)),
        ("lstm", (64, 9)),
        ("decoder", (64,)),
        ("vit-tiny", (3, 32, 32)),
        ("resnet-18-group-norm", (3, 32, 32)),
    )
)
WORKLOADS = {workload.name: workload for workload in (W, W_CIFAR, *FIELD)}


def count_flops(module: nn.Module, shape: Shape) -> float:
    """Multiplications and additions of matrix products, convolutions and attention for one sample."""
    sample = torch.zeros(1, *shape, dtype=torch.long if len(shape) == 1 else torch.float32)
    return count_forward_flops(module.eval(), sample).operations


def forward_flops(module: nn.Module, image: Shape) -> float:
    """Multiplications and additions of convolutions and fully connected layers for one image; nothing else counts."""
    flops, (_, height, width) = 0.0, image
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            height, width = (side + 2 * int(layer.padding[0]) - 2 for side in (height, width))
            flops += 2 * 9 * layer.in_channels * layer.out_channels * height * width
        elif isinstance(layer, nn.MaxPool2d):
            height, width = height // 2, width // 2
        elif isinstance(layer, nn.Linear):
            flops += 2 * layer.in_features * layer.out_features
    return flops
