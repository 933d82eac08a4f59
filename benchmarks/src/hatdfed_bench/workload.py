"""The work that is timed: one round of hat-dfed on one of the paper's two networks, and its nominal arithmetic."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import nn

from hatdfed.data.datasets.base import Dataset, Examples
from hatdfed.randomness import stream
from hatdfed.server.networks import Shape, paper_cnn
from hatdfed.setup.config import Config
from hatdfed.setup.layers import resolve

SAMPLES, PASSES, PROBE, VALIDATION = 60, 2, 16, 1000
LINKS_PER_SERVER = 1.2
IMAGES_PER_SERVER = 800
CLASSES = 10


@dataclass(frozen=True)
class Workload:
    """W (`fashion-mnist`) or W-cifar (`cifar-10`): images of that shape, which need not be the real ones."""

    name: str
    image: Shape

    def dataset(self) -> Dataset:
        """Random images; how long a round takes does not depend on what is in them."""
        rng = stream(0, "bench", self.name)

        def images(count: int) -> Examples:
            pixels = rng.integers(0, 256, size=(count, *self.image), dtype=np.uint8)
            return Examples(pixels, rng.integers(0, CLASSES, size=count))

        half = (0.5,) * self.image[0]
        return Dataset(self.name, images(20_000), images(VALIDATION), images(100), CLASSES, mean=half, std=half)

    def config(self, servers: int, *, rounds: int, seed: int = 0, method: str = "hat-dfed") -> Config:
        """Settings of the run: every device online, 1.2 links a server."""
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
                "validation_images": VALIDATION,
                "images_per_server": IMAGES_PER_SERVER,
                "network": "paper-cnn",
            }
        )

    def round_flops(self, servers: int) -> float:
        """Nominal floating-point operations of a round: what it takes without any shortcut.

        A trained sample costs three forward passes. Models are judged on a probe by their owner and by every receiver.
        """
        forward = forward_flops(paper_cnn(self.image, CLASSES), self.image)
        judged = 1 + round(LINKS_PER_SERVER * servers) / servers
        return servers * forward * (3 * SAMPLES * PASSES + PROBE * judged + VALIDATION)


W = Workload("fashion-mnist", (1, 28, 28))
W_CIFAR = Workload("cifar-10", (3, 32, 32))
WORKLOADS = {workload.name: workload for workload in (W, W_CIFAR)}


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
