"""From arrays over all servers back to what each server reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hatdfed.energy.prices import EnergyPrices
from hatdfed.fleets.spending import energy_spent
from hatdfed.learning.work import WorkPlan
from hatdfed.round import RoundPlan, RoundReport, ServerReport

Table = NDArray[np.float64]


class Measured(NamedTuple):
    """What came out of a round, for the servers of one run; on the host."""

    accuracy: Table  # [N]
    weights: Table  # [N, D]
    present: NDArray[np.bool_]  # [N, D]
    scores: Mapping[str, Table]  # [N, D] each
    compression: Table  # [N] of what each server sent


def round_report(
    plan: RoundPlan, works: Sequence[WorkPlan], prices: EnergyPrices, senders: NDArray[np.int64], measured: Measured
) -> RoundReport:
    """The reports of one run; `senders` [N, D] are numbered from 0 in this run."""
    num_servers = len(works)
    filled = np.nonzero(measured.present)
    places = (filled[0], senders[filled])
    delivered = np.zeros((num_servers, num_servers), dtype=bool)
    delivered[places] = True
    np.fill_diagonal(delivered, False)
    importance = _spread(measured.weights[filled], places, num_servers)
    scores = {name: _spread(table[filled], places, num_servers) for name, table in measured.scores.items()}
    return RoundReport(
        tuple(
            ServerReport(
                accuracy=float(measured.accuracy[i]),
                num_samples=work.num_samples,
                importance=importance[i],
                delivered=delivered[i],
                energy=energy_spent(prices, plan, work, server=i, compression=float(measured.compression[i])),
                scores={name: table[i] for name, table in scores.items()},
            )
            for i, work in enumerate(works)
        )
    )


def _spread(values: Table, places: tuple[NDArray[np.intp], NDArray[np.int64]], num_servers: int) -> Table:
    table = np.full((num_servers, num_servers), np.nan)
    table[places] = values
    return table
