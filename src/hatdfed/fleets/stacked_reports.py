"""From arrays over all servers back to what each server reports."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hatdfed.energy.prices import EnergyPrices
from hatdfed.fleets.spending import Worked, energy_spent
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
    plan: RoundPlan, works: Sequence[Worked], prices: EnergyPrices, senders: NDArray[np.int64], measured: Measured
) -> RoundReport:
    """The reports of one run; `senders` [N, D] are numbered from 0 in this run."""
    rows = _short_rows if plan.draw.candidates is not None else _whole_rows
    return RoundReport(
        tuple(
            ServerReport(
                accuracy=float(measured.accuracy[i]),
                num_samples=work.num_samples,
                importance=row.importance,
                delivered=row.delivered,
                energy=energy_spent(prices, plan, work, server=i, compression=float(measured.compression[i])),
                scores=row.scores,
                senders=row.senders,
            )
            for i, (work, row) in enumerate(zip(works, rows(senders, measured), strict=True))
        )
    )


class _Row(NamedTuple):
    """What one server says of the others."""

    importance: Table
    delivered: NDArray[np.bool_]
    scores: Mapping[str, Table]
    senders: NDArray[np.int64] | None = None


def _whole_rows(senders: NDArray[np.int64], measured: Measured) -> Iterator[_Row]:
    """A place for every server."""
    num_servers = len(senders)
    filled = np.nonzero(measured.present)
    places = (filled[0], senders[filled])
    delivered = np.zeros((num_servers, num_servers), dtype=bool)
    delivered[places] = True
    np.fill_diagonal(delivered, False)
    importance = _spread(measured.weights[filled], places, num_servers)
    scores = {name: _spread(table[filled], places, num_servers) for name, table in measured.scores.items()}
    for i in range(num_servers):
        yield _Row(importance[i], delivered[i], {name: table[i] for name, table in scores.items()})


def _short_rows(senders: NDArray[np.int64], measured: Measured) -> Iterator[_Row]:
    """Places for those that were heard only."""
    for i, here in enumerate(measured.present):
        heard = senders[i, here]
        scores = {name: table[i, here] for name, table in measured.scores.items()}
        yield _Row(measured.weights[i, here], heard != i, scores, heard)


def _spread(values: Table, places: tuple[NDArray[np.intp], NDArray[np.int64]], num_servers: int) -> Table:
    table = np.full((num_servers, num_servers), np.nan)
    table[places] = values
    return table
