"""How far one step of an optimiser goes, for each server."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Rates(NamedTuple):
    """What one step of Adam needs to know about each server."""

    step: Tensor  # [S] how far to go along the first moment: learning rate over its bias
    second: Tensor  # [S] what the second moment is multiplied with to undo its bias
