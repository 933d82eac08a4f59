"""What can be wrong with a server's training data: labels at random, labels turned around, inputs that are noise."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hatdfed.data.datasets.base import Examples
from hatdfed.randomness import stream


class Flaws(NamedTuple):
    """The flaws of one server's data; the same in every round."""

    seed: int
    server: int
    label_rate: float = 0.0  # share of labels that are replaced by random ones
    is_noise: bool = False  # whether a broken sensor sends noise instead of samples
    flips_labels: bool = False  # whether label l is given as C − 1 − l

    def __bool__(self) -> bool:
        """Whether there is any."""
        return self.label_rate > 0 or self.is_noise or self.flips_labels

    def apply(self, examples: Examples, num_classes: int) -> Examples:
        """The samples and labels as this server has them; flaws of labels are for samples with class labels."""
        x, labels = examples
        if self.label_rate:
            rng = stream(self.seed, "bad-labels", self.server)
            is_wrong = rng.random(len(labels)) < self.label_rate
            labels = np.where(is_wrong, rng.integers(num_classes, size=len(labels)), labels)
        if self.is_noise:
            x = _draw_noise(x, stream(self.seed, "broken-sensor", self.server))
        if self.flips_labels:
            labels = num_classes - 1 - labels
        return Examples(x, labels)


def _draw_noise(x: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
    """Noise of the type of `x`: any pixel, any token that occurs, or numbers as large as those of each feature."""
    if x.dtype == np.uint8:
        return rng.integers(256, size=x.shape, dtype=np.uint8)
    if x.dtype.kind in "iu":
        return rng.integers(int(x.max(initial=0)) + 1, size=x.shape).astype(x.dtype)
    noise: NDArray[Any] = x.mean(axis=0) + x.std(axis=0) * rng.standard_normal(x.shape)
    return noise.astype(x.dtype)
