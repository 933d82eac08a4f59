"""Where servers have their energy from, and what becomes of those that have too little.

A server with a battery takes part in a round only if its charge covers the most that the round can cost it, so that its
charge is never below zero. Otherwise it is away: switched off, it spends nothing, and what it harvests is stored.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hatdfed.core.energy.energy_model import Cause, EnergyRow
from hatdfed.core.energy.upkeep import Upkeep
from hatdfed.core.round import Bill, RoundReport
from hatdfed.core.traces import Trace

Values = NDArray[np.float64]
JOULES_PER_KWH = 3.6e6


class Span(NamedTuple):
    """When a round begins and ends, in seconds since the run began."""

    begin: float
    end: float

    @property
    def length(self) -> float:
        """Seconds from begin to end."""
        return self.end - self.begin


class Batteries(NamedTuple):
    """One for each server; a server on mains has one without end."""

    capacity: Values  # [N] joules; inf: on mains
    first_charge: Values  # [N] joules, before round 0
    reserve: Values  # [N] joules that a round must leave
    harvest: Trace  # [N] watts

    def can_cover(self, charge: Values, most: Values) -> NDArray[np.bool_]:  # [N] each
        """Whose charge covers the most that a round can cost."""
        enough: NDArray[np.bool_] = charge - most >= self.reserve
        return enough

    def settle(self, charge: Values, spent: Values, span: Span) -> Values:  # [N] each
        """The charge after a round in which so much was spent; what does not fit in is lost."""
        left = np.maximum(0.0, charge - spent)  # a round's rows may add up to a rounding error more than their bound
        charged: Values = np.minimum(self.capacity, left + np.maximum(0.0, self.harvest.integrate(*span)))
        return charged


@dataclass(frozen=True, eq=False)
class Supply:
    """The energy and the presence of all servers over time."""

    round_seconds: float | None  # of every round; None: as long as the simulated machines take
    batteries: Batteries | None = None  # None: everybody is on mains
    availability: Trace | None = None  # [N] away where it is 0
    carbon: Trace | None = None  # [N] grams of CO2 equivalents a kWh of the grid
    tariff: Trace | None = None  # [N] currency a kWh
    upkeep: Upkeep | None = None  # None: nothing but uploads, training and links costs energy

    @property
    def first_charge(self) -> Values | None:
        """[N] before round 0; None: everybody is on mains."""
        return None if self.batteries is None else self.batteries.first_charge.copy()

    @property
    def capacity(self) -> Values | None:
        """[N] of the batteries; None: everybody is on mains."""
        return None if self.batteries is None else self.batteries.capacity

    def span(self, t: int, elapsed: float = 0.0, seconds: float = 0.0) -> Span:
        """The time of round t: the only place that says how long it lasts.

        By the simulated clock, it begins when `elapsed` seconds have passed and takes `seconds`.
        """
        if self.round_seconds is None:
            return Span(elapsed, elapsed + seconds)
        return Span(t * self.round_seconds, (t + 1) * self.round_seconds)

    def is_available(self, span: Span, num_servers: int) -> NDArray[np.bool_]:  # -> [N]
        """Who is there when a round begins."""
        if self.availability is None:
            return np.ones(num_servers, dtype=bool)
        there: NDArray[np.bool_] = self.availability.at(span.begin) > 0
        return there

    def add_upkeep(self, t: int, span: Span, report: RoundReport, active: NDArray[np.bool_]) -> RoundReport:  # [N]
        """The reports of round t with the energy that follows from them."""
        if self.upkeep is None:
            return report
        return replace(report, upkeep_energy=self.upkeep.find_rows(t, report, active, span.length))

    def is_exhausted(self, span: Span, charge: Values, most: Values, most_received: Values) -> NDArray[np.bool_]:
        """[N] who cannot pay the most that a round can cost: `most` for training and links, and its upkeep."""
        if self.batteries is None:
            return np.zeros(len(most), dtype=bool)
        upkeep = 0.0 if self.upkeep is None else self.upkeep.find_most(most_received, span.length)
        return ~self.batteries.can_cover(charge, most + upkeep)

    def charge_after(self, span: Span, charge: Values | None, rows: Iterable[EnergyRow]) -> Values | None:  # [N] -> [N]
        """The charge after a round whose ledger these rows are."""
        if self.batteries is None or charge is None:
            return None
        return self.batteries.settle(charge, own_joules(rows, len(charge)), span)

    def find_bill(self, span: Span, rows: Iterable[EnergyRow], num_servers: int) -> Bill:
        """What a round emitted and cost, at the mean values of its time and each server's place."""
        kept = list(rows)
        grid = _joules_by_server((row for row in kept if row.cause is Cause.UPLOAD), num_servers)
        own = own_joules(kept, num_servers)
        grid += own if self.batteries is None else np.where(np.isinf(self.batteries.capacity), own, 0.0)
        carbon, cost = (
            None if trace is None else float((grid * trace.mean(*span)).sum()) / JOULES_PER_KWH
            for trace in (self.carbon, self.tariff)
        )
        return Bill(carbon, cost)


def own_joules(rows: Iterable[EnergyRow], num_servers: int) -> Values:  # -> [N]
    """Joules that every server spent itself: all but uploads, which its devices pay."""
    return _joules_by_server((row for row in rows if row.cause is not Cause.UPLOAD), num_servers)


def _joules_by_server(rows: Iterable[EnergyRow], num_servers: int) -> Values:  # -> [N]
    """By who pays: the sender, or the server that devices send to."""
    joules = np.zeros(num_servers)
    for row in rows:
        joules[row.receiver if row.sender is None else row.sender] += row.joules
    return joules
