"""What a server's round costs: the ledger's rule, the same for every fleet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from hatdfed.core.energy.ledger import EnergyRow
from hatdfed.core.energy.prices import EnergyPrices
from hatdfed.core.round import RoundPlan


class Worked(Protocol):
    """What a server did with its devices' data."""

    @property
    def num_samples(self) -> int:
        """That it trained on."""

    @property
    def devices_online(self) -> int:
        """That sent them."""


def energy_spent(
    prices: EnergyPrices,
    plan: RoundPlan,
    work: Worked,
    *,
    server: int,
    compression: float | Mapping[int, float],
) -> tuple[EnergyRow, ...]:
    """Uploads to the server, its training, and every model it sent, whether or not it was accepted.

    `compression` is the share of a float32 model that was sent, to all receivers or to each.
    """
    receivers = plan.draw.topology.receivers(server)
    shares = compression if isinstance(compression, Mapping) else dict.fromkeys(receivers, compression)
    return (
        prices.upload(plan.t, server, work.devices_online, work.num_samples),
        prices.training(plan.t, server, work.num_samples),
        *(prices.link(plan.t, receiver, server, compression=shares[receiver]) for receiver in receivers),
    )
