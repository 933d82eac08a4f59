"""Rounds with a deadline: whoever is late is left out of the round's exchange, and nobody waits for it.

A server that has not trained by then neither sends nor receives. It goes on training while the next rounds are played,
and exchanges models in the one in which it is done, without training anew in that one. A model that is still under way
when a round ends does not arrive.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hatdfed.core.energy.energy_model import EnergyPrices
from hatdfed.core.links import BoolColumn, LinkTable
from hatdfed.core.round import RoundPlan, Worked
from hatdfed.core.timing.machines import Seconds
from hatdfed.core.timing.round_time import RoundClock, RoundTime


class Deadline(NamedTuple):
    """When a round ends at the latest, and what is needed to know who is late."""

    seconds: float  # since the round began
    clock: RoundClock
    prices: EnergyPrices
    message_bits: float  # along one link

    def first_busy(self) -> Seconds:  # -> [N]
        """Nobody is busy before the first round."""
        return np.zeros(self.prices.num_servers)

    def find_training(self, t: int, busy: Seconds | None) -> NDArray[np.bool_]:  # [N] -> [N]
        """All but those that are busy with an earlier round."""
        return (self.first_busy() if busy is None else busy) <= 0

    def find_exchanging(self, t: int, busy: Seconds | None) -> NDArray[np.bool_]:  # [N] -> [N]
        """All but those that are busy until the deadline."""
        return (self.first_busy() if busy is None else busy) < self.seconds

    def find_possible(self, t: int, busy: Seconds | None, links: LinkTable) -> BoolColumn:  # [N] -> [E]
        """Links between servers that are not busy until the deadline."""
        there = self.find_exchanging(t, busy)
        return links.at_receivers(there) & links.at_senders(there)

    def find_ages(self, t: int, links: LinkTable) -> None:
        """Everybody sends the model that it has just trained."""
        return

    def find_late(self, plan: RoundPlan, works: Sequence[Worked]) -> NDArray[np.bool_]:  # [N] -> [L]
        """Which messages of a round do not arrive, because their sender or their receiver is late."""
        receiver, sender = plan.draw.topology.pairs.T
        samples = np.array([work.num_samples for work in works])
        rows = (self.prices.upload(plan.t, i, work.devices_online, work.num_sent) for i, work in enumerate(works))
        passes = None if plan.effort is None else plan.effort.passes
        busy = self.first_busy() if plan.busy is None else plan.busy
        clock = self.clock.at(plan.begins_at)
        upload = clock.find_upload(np.array([row.bits for row in rows]))
        ready = busy + upload + clock.find_compute(samples, passes)
        sending = clock.find_sending(sender, np.full(len(sender), self.message_bits))
        arrival = (ready + sending + clock.machines.latency_seconds)[sender]
        is_late: NDArray[np.bool_] = (arrival > self.seconds) | (ready[receiver] > self.seconds)
        return is_late

    def close_round(self, t: int, busy: Seconds | None, time: RoundTime) -> RoundTime:
        """The time of a round that nobody is waited for in, beyond its deadline or if it is busy until then.

        A round in which everybody is busy lasts until its deadline.
        """
        done = time.done[self.find_exchanging(t, busy)]
        return time._replace(seconds=min(self.seconds, float(done.max())) if len(done) else self.seconds)

    def find_longest(self) -> float:
        """Seconds until the deadline."""
        return self.seconds

    def next_busy(self, time: RoundTime) -> Seconds:  # -> [N]
        """Seconds of the next round in which each server is still training."""
        return np.maximum(0.0, time.ready - time.seconds)
