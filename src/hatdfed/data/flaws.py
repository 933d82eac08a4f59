"""What can be wrong with a server's training data: labels at random, labels turned around, images that are noise."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hatdfed.data.datasets.base import Examples
from hatdfed.randomness import stream


class Flaws(NamedTuple):
    """The flaws of one server's data; the same in every round."""

    seed: int
    server: int
    label_rate: float = 0.0  # share of labels that are replaced by random ones
    is_noise: bool = False  # whether a broken sensor sends noise instead of images
    flips_labels: bool = False  # whether label l is given as C − 1 − l

    def __bool__(self) -> bool:
        """Whether there is any."""
        return self.label_rate > 0 or self.is_noise or self.flips_labels

    def apply(self, images: Examples, num_classes: int) -> Examples:
        """The images and labels as this server has them."""
        pixels, labels = images
        if self.label_rate:
            rng = stream(self.seed, "bad-labels", self.server)
            is_wrong = rng.random(len(labels)) < self.label_rate
            labels = np.where(is_wrong, rng.integers(num_classes, size=len(labels)), labels)
        if self.is_noise:
            rng = stream(self.seed, "broken-sensor", self.server)
            pixels = rng.integers(256, size=pixels.shape, dtype=np.uint8)
        if self.flips_labels:
            labels = num_classes - 1 - labels
        return Examples(pixels, labels)
