"""Differentially private gradients: each sample's is clipped, and noise is added to their sum (DP-SGD).

M. Abadi et al. Deep learning with differential privacy. CCS 2016. What one sample can change in the sum is bounded by
the clipping norm, whatever the sample; noise of that size hides whether it was there (`hatdfed.runs.privacy_loss`).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from hatdfed.errors import ConfigError
from hatdfed.randomness import stream

NoiseSource = Callable[[int], np.random.Generator]  # from the seed of a server's round
_NUMBERS_AT_ONCE = 1 << 22  # of the gradients of single samples: 16 MB


def repeatable_noise(seed: int) -> np.random.Generator:
    """Make the noise of a simulation, the same in every repetition."""
    return stream(seed, "privacy-noise")


def secret_noise(_: int) -> np.random.Generator:
    """Make the noise of a real edge, from the operating system's entropy: all members of a run know its seeds."""
    return np.random.Generator(np.random.PCG64DXSM(secrets.randbits(256)))


@dataclass(frozen=True)
class PrivateSteps:
    """How the gradients of a batch are made private."""

    clip: float  # C: largest norm of one sample's gradient
    noise: float  # σ: standard deviation of the noise on the sum, in units of C
    source: NoiseSource = repeatable_noise

    def count_at_once(self, num_trainable: int) -> int:
        """Return how many samples' gradients are computed at once: memory is bounded."""
        return max(1, _NUMBERS_AT_ONCE // max(1, num_trainable))

    def finish(self, total: Tensor, num_samples: int, rng: np.random.Generator) -> Tensor:
        """Add noise to the sum of clipped gradients, and divide by the number of samples."""
        if self.noise:
            normal = torch.from_numpy(rng.standard_normal(tuple(total.shape), dtype=np.float32))
            total = total + self.noise * self.clip * normal.to(total.device)
        return total / num_samples


def clip_and_sum(gradients: Mapping[str, Tensor], clip: float) -> dict[str, Tensor]:  # [n, …] each -> […] each
    """Scale every sample's gradient, all parameters together, to at most the norm `clip`, and sum over samples.

    A gradient that is not finite has no norm to be scaled to, so it counts as zero.
    """
    squares = [gradient.flatten(1).double().square().sum(dim=1) for gradient in gradients.values()]
    norms = torch.stack(squares).sum(dim=0).sqrt()  # [n]
    is_finite = torch.isfinite(norms)
    factors = torch.where(is_finite, (clip / norms.clamp(min=clip)), 0.0).float()
    whole = bool(is_finite.all())
    return {
        name: torch.tensordot(factors, gradient if whole else torch.nan_to_num(gradient, 0.0, 0.0, 0.0), dims=1)
        for name, gradient in gradients.items()
    }


def refuse_mixing_layers(module: nn.Module, network: str, instead: str) -> None:
    """Refuse a network with layers that work on a batch as a whole: no image has a gradient of its own there."""
    for layer in module.modules():
        if is_mixing(layer):
            raise ConfigError(
                f"privacy.clip needs a network that treats every image by itself, but {network} has "
                f"{type(layer).__name__}, which works on a whole batch. Use network {instead}."
            )


def is_mixing(layer: nn.Module) -> bool:
    """Whether a layer takes statistics over samples, or draws its masks for a whole batch (`SeededDropout`)."""
    if isinstance(layer, _InstanceNorm):
        return layer.track_running_stats
    return isinstance(layer, _BatchNorm) or (type(layer) is nn.Dropout and 0 < layer.p < 1)
