"""How long a round takes: a function of what servers did, of what they sent, and of how fast their machines are.

A server receives its devices' data, trains, and sends its model. Receivers of one model share the sender's uplink
evenly, so all of them have it at the same time. A parameter server sends when it has received all models. A server is
done when it has trained, its model is sent, and all models for it have arrived; a round is over when the slowest server
is done. Judging and merging models takes no time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hatdfed.core.energy.energy_model import Cause, EnergyRow
from hatdfed.core.timing.machines import Machines, RateTraces, Seconds

Counts = NDArray[np.int64]


class RoundTime(NamedTuple):
    """Simulated seconds of one round."""

    seconds: float  # until the round is over
    upload: Seconds  # [N] receiving data from devices
    compute: Seconds  # [N] training
    sending: Seconds  # [N] the uplink is busy with the server's model
    ready: Seconds  # [N] since the round began, until the server has trained
    done: Seconds  # [N] since the round began

    @property
    def waiting(self) -> Seconds:
        """[N] seconds in which each server waits for the slowest."""
        return np.maximum(0.0, self.seconds - self.done)


class Sent(NamedTuple):
    """What went over the network in a round."""

    upload_bits: NDArray[np.float64]  # [N] from devices to each server
    receiver: Counts  # [L]
    sender: Counts  # [L]
    bits: NDArray[np.float64]  # [L] along each link, everything that was sent again included


class RoundClock(NamedTuple):
    """The machines of a run and the passes that they make over a round's data, unless a plan says otherwise."""

    machines: Machines
    passes: int
    rates: RateTraces | None = None  # None: rates do not change

    def at(self, second: float) -> RoundClock:
        """The clock of a round that begins at this time: the rates of its beginning hold until its end."""
        return self if self.rates is None else RoundClock(self.rates.apply(self.machines, second), self.passes)

    def measure(
        self,
        samples: Counts,
        passes: Counts | None,
        rows: Iterable[EnergyRow],
        busy: Seconds | None = None,
        host: int | None = None,
    ) -> RoundTime:  # [N] each
        """The seconds of a round in which servers trained on `samples` and the ledger got these rows.

        A server that was `busy` with an earlier round begins later; `host` is the parameter server, if there is one.
        """
        sent = read_sent(rows, self.machines.num_servers)
        upload = self.find_upload(sent.upload_bits)
        compute = self.find_compute(samples, passes)
        ready = upload + compute if busy is None else busy + upload + compute
        sending = self.find_sending(sent.sender, sent.bits)
        sent_by = ready + sending + self.machines.latency_seconds
        if host is not None:
            arrived = sent_by[sent.sender[sent.receiver == host]].max(initial=0.0)
            sent_by[host] += max(0.0, float(arrived) - float(ready[host]))
        arrival = sent_by[sent.sender]
        done = ready.copy()
        np.maximum.at(done, sent.sender, arrival)
        np.maximum.at(done, sent.receiver, arrival)
        return RoundTime(float(done.max(initial=0.0)), upload, compute, sending, ready, done)

    def find_upload(self, bits: NDArray[np.float64]) -> Seconds:  # [N] -> [N]
        """Seconds in which each server receives so many bits from its devices."""
        seconds: Seconds = bits / self.machines.upload_bits_per_second
        return seconds

    def find_compute(self, samples: Counts, passes: Counts | None) -> Seconds:  # [N], [N] -> [N]
        """Seconds of training on so many samples, so many times."""
        times = self.passes if passes is None else passes
        seconds: Seconds = samples * times * self.machines.sample_seconds
        return seconds

    def find_sending(self, sender: Counts, bits: NDArray[np.float64]) -> Seconds:  # [L], [L] -> [N]
        """Seconds in which each server's uplink is busy, with all its receivers one after another or at once."""
        sums = np.bincount(sender, weights=bits, minlength=self.machines.num_servers)
        seconds: Seconds = sums / self.machines.uplink_bits_per_second
        return seconds


def read_sent(rows: Iterable[EnergyRow], num_servers: int) -> Sent:
    """What the rows of a round's ledger say about data on the network."""
    rows = list(rows)
    uploads = [row for row in rows if row.cause is Cause.UPLOAD]
    links = [row for row in rows if row.cause is Cause.LINK and row.sender is not None]
    server = np.array([row.receiver for row in uploads], dtype=np.int64)
    upload = np.bincount(server, weights=[row.bits for row in uploads], minlength=num_servers)
    receiver = np.array([row.receiver for row in links], dtype=np.int64)
    sender = np.array([row.sender for row in links], dtype=np.int64)
    return Sent(upload.astype(np.float64), receiver, sender, np.array([row.bits for row in links], dtype=np.float64))
