"""How much work a network is, counted while it looks at one sample."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.backends import mkldnn
from torch.utils.flop_counter import FlopCounterMode


@contextmanager
def _prevent_fusion() -> Iterator[None]:
    """Without gradients, or with oneDNN, torch fuses whole layers into one operation that it does not count."""
    with warnings.catch_warnings(), torch.enable_grad():
        warnings.simplefilter("ignore")  # torch warns of settings for other machines
        with mkldnn.flags(enabled=False):
            yield


class ForwardFlops(NamedTuple):
    """Floating-point operations of one forward pass over one sample."""

    operations: float
    is_counted: bool  # False: estimated from the number of parameters


def count_forward_flops(module: nn.Module, sample: Tensor) -> ForwardFlops:  # [1, …]
    """Count the operations of matrix products, convolutions and attention, two for each multiplication and addition.

    Operations that torch does not count, such as sums and activations, are a small part of all. A network without any
    that it counts, or one that it cannot look into, is estimated at two for each parameter.
    """
    try:
        with _prevent_fusion(), FlopCounterMode(display=False) as counter:
            module(sample)
        counted = float(counter.get_total_flops())
    except Exception:  # noqa: BLE001 (it is somebody else's module; that it takes such samples was seen before)
        counted = 0.0
    if counted > 0:
        return ForwardFlops(counted, is_counted=True)
    return ForwardFlops(max(1.0, 2.0 * sum(each.numel() for each in module.parameters())), is_counted=False)
