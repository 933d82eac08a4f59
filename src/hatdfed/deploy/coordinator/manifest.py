"""What all models of a run have in common."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hatdfed.deploy.protocol import hatdfed_pb2 as pb

_LAYOUT = re.compile(r"[0-9a-f]{1,64}")
_MOST_NUMBERS = 10**12
_MOST_SHARE = 4.0  # no codec makes a model longer than that


@dataclass(frozen=True)
class Manifest:
    """The first edge says it, all others must agree."""

    num_params: int
    bits_per_sample: int
    layout: str
    message_share: float


def told_by(prepared: pb.Prepared) -> Manifest | None:
    """What an edge says of its model; None if that cannot be."""
    is_plausible = (
        0 < prepared.num_params <= _MOST_NUMBERS
        and 0 < prepared.bits_per_sample <= _MOST_NUMBERS
        and _LAYOUT.fullmatch(prepared.layout) is not None
        and 0 < prepared.message_share <= _MOST_SHARE
        and 0 <= prepared.accuracy <= 1
    )
    if not is_plausible:
        return None
    return Manifest(prepared.num_params, prepared.bits_per_sample, prepared.layout, prepared.message_share)
