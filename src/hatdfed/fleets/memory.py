"""How much memory a stacked fleet takes, known before it is made."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hatdfed.fleets.rows import Member

SMALL_NETWORK = 100_000  # parameters


def rows_that_fit(members: Sequence[Member], device: torch.device) -> int:
    """Servers in one tensor program."""
    num_params = members[0].program.learner.num_params
    if device.type == "cpu":
        # What one server touches should stay in the cache; small networks would rather share the cost of a call.
        return 5 if num_params > SMALL_NETWORK else 64
    return 512
