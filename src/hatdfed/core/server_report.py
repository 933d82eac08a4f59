"""What a server reports of a round, the same for every fleet; its energy is priced by the coordinator's own list."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from hatdfed.core.consensus import Sketch
from hatdfed.core.energy.ledger import EnergyRow
from hatdfed.core.energy.prices import EnergyPrices
from hatdfed.core.links import Indices
from hatdfed.core.round import RoundPlan, ServerReport, Values


class Worked(Protocol):
    """What a server did with its devices' data."""

    @property
    def num_samples(self) -> int:
        """That it trained on."""

    @property
    def devices_online(self) -> int:
        """That sent them."""


class WorkDone(NamedTuple):
    """The same as two numbers, for whoever knows no more of it."""

    num_samples: int
    devices_online: int


def make_server_report(
    plan: RoundPlan,
    prices: EnergyPrices,
    server: int,
    work: Worked,
    *,
    accuracy: float,
    senders: Indices,
    importance: Values,
    scores: Mapping[str, Values],
    compression: float | Mapping[int, float],
    sketch: Sketch | None = None,
) -> ServerReport:
    """The report of `server` about itself and the models that it merged, those of `senders`.

    `compression` is the share of a float32 model that it sent, to all receivers or to each.
    """
    energy = _energy_spent(prices, plan, work, server, compression)
    return ServerReport(accuracy, work.num_samples, senders, importance, energy, scores, sketch)


def _energy_spent(
    prices: EnergyPrices, plan: RoundPlan, work: Worked, server: int, compression: float | Mapping[int, float]
) -> tuple[EnergyRow, ...]:
    """Uploads to the server, its training, and every model it sent, whether or not it was accepted."""
    receivers = plan.draw.topology.receivers(server)
    shares = compression if isinstance(compression, Mapping) else dict.fromkeys(receivers, compression)
    return (
        prices.upload(plan.t, server, work.devices_online, work.num_samples),
        prices.training(plan.t, server, work.num_samples),
        *(prices.link(plan.t, receiver, server, compression=shares[receiver]) for receiver in receivers),
    )
