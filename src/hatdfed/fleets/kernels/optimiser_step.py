"""One step of an optimiser for many servers: what goes into it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor


class Rates(NamedTuple):
    """What one step of Adam needs to know about each server."""

    step: Tensor  # [S] how far to go along the first moment: learning rate over its bias
    second: Tensor  # [S] what the second moment is multiplied with to undo its bias


Gradients = Mapping[int, Tensor]  # [S, …] of a tensor, by where it starts in a row of parameters


class Step(NamedTuple):
    """Parameters and moments are changed in place; rows may lie apart."""

    params: Tensor  # [S, P]
    gradients: Gradients
    first: Tensor  # [S, T] or [S, 0]
    second: Tensor  # [S, T] or [S, 0]
    rates: Rates
    active: Tensor  # [S] 1, or 0 for a server that stays as it is
