"""Networks of fully connected layers, for samples of any shape."""

from __future__ import annotations

import math

from torch import nn

from hatdfed.server.networks.shapes import Shape

_WIDE, _NARROW = 200, 100


def linear(shape: Shape, num_outputs: int) -> nn.Module:
    """One linear layer: softmax regression, or linear regression."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), num_outputs))


def mlp(shape: Shape, num_outputs: int) -> nn.Module:
    """Two hidden layers of 200 and 100 units with ReLU."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(math.prod(shape), _WIDE),
        nn.ReLU(),
        nn.Linear(_WIDE, _NARROW),
        nn.ReLU(),
        nn.Linear(_NARROW, num_outputs),
    )
