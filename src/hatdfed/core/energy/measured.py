"""Energy that real machines measured, beside what the price list says of the same work.

One of the two counts, as the settings say; the ledger keeps both. Links stay modelled by their bits, because no machine
measures radios and network interfaces. What is measured of an exchange is the work of the processor: its own cause.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from hatdfed.core.energy.energy_model import Cause, EnergyRow, Source

MEASURED_CAUSES = (Cause.TRAINING, Cause.EXCHANGE)
MOST_JOULES = 1e9  # in one round of one server: what is beyond is no reading


class Metered(NamedTuple):
    """What a server's meter says of one kind of work in a round."""

    joules: float
    uncertainty: float  # joules, in either direction
    meter: str  # such as rapl


def add_measured(
    rows: Iterable[EnergyRow], metered: Mapping[Cause, Metered], *, t: int, server: int, counts: bool
) -> tuple[EnergyRow, ...]:
    """The rows of a server with what it measured; with `counts` that is what is charged."""
    rows = [*rows]
    if Cause.EXCHANGE in metered:  # of which the price list knows nothing
        rows.append(EnergyRow(t, Cause.EXCHANGE, server, server, 0.0, 0.0))
    return tuple(
        _add_to_row(row, metered[row.cause], counts=counts) if row.cause in metered and row.receiver == server else row
        for row in rows
    )


def _add_to_row(row: EnergyRow, found: Metered, *, counts: bool) -> EnergyRow:
    beside = row._replace(
        modelled_joules=row.joules,
        measured_joules=found.joules,
        uncertainty_joules=found.uncertainty,
        meter=found.meter,
    )
    return beside._replace(joules=found.joules, source=Source.MEASURED) if counts else beside
