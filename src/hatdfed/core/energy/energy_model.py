"""The paper's energy model: what an upload, a trained sample and a link cost in this world, and what was spent.

Prices are drawn once for a seed, so every method with that seed meets the same machines and the same links. Whatever is
spent is a row of the ledger: who spent how many joules, towards whom, why, and how we know. The joules of a round,
Eq. (7), are the sum of its rows and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hatdfed.core.effort import ServerEffort
from hatdfed.core.energy.link_efficiency import LinkEfficiencies
from hatdfed.core.energy.price_drift import PriceDrift
from hatdfed.core.links import FloatColumn, FloatMatrix, LinkTable
from hatdfed.core.timing.machines import draw_is_weak
from hatdfed.randomness import stream


class Cause(StrEnum):
    """What joules are spent on."""

    UPLOAD = "upload"  # devices send their data to their server, Eq. (4)
    TRAINING = "training"  # a server trains on it, Eq. (5)
    LINK = "link"  # a server sends its model to another, Eq. (6)
    PROBE = "probe"  # it evaluates models on its probe; this and what follows costs nothing in the paper
    MERGE = "merge"  # it merges models
    IDLE = "idle"  # it is switched on
    EXCHANGE = "exchange"  # its processor sends and receives models; known only where it is measured


PAPER_CAUSES = (Cause.UPLOAD, Cause.TRAINING, Cause.LINK)


class Source(StrEnum):
    """Where a figure comes from."""

    MODELLED = "modelled"  # by the price list
    CALIBRATED = "calibrated"  # by prices that `hatdfed calibrate` measured
    MEASURED = "measured"  # in this very round


class EnergyRow(NamedTuple):
    """One line of the ledger."""

    t: int
    cause: Cause
    sender: int | None  # None: the devices of the receiver
    receiver: int
    bits: float
    joules: float
    source: Source = Source.MODELLED
    bits_again: float = 0.0  # of `bits`: what had been sent before, in transfers that failed or broke off
    hops: int = 1  # 2 through a relay; `bits` and `joules` are those of all hops
    modelled_joules: float | None = None  # by the price list, where it was measured, too; None: as `joules`
    measured_joules: float | None = None  # by a meter, whether that counts or not; None: nobody measured
    uncertainty_joules: float | None = None  # of the measurement, in either direction
    meter: str | None = None  # what measured it, such as rapl


def total_joules(rows: Iterable[EnergyRow]) -> float:
    """E_k, Eq. (7): everything that was spent."""
    return math.fsum(row.joules for row in rows)


def joules_by_cause(rows: Iterable[EnergyRow]) -> dict[Cause, float]:
    """The sums of Eq. (7), exactly rounded; a cause without a row counts 0."""
    spent: dict[Cause, list[float]] = {cause: [] for cause in Cause}
    for row in rows:
        spent[row.cause].append(row.joules)
    return {cause: math.fsum(joules) for cause, joules in spent.items()}


@dataclass(frozen=True, eq=False)
class EnergyPrices:
    """Prices of one world; arrays are read-only."""

    num_devices: int  # under each server
    device_upload_bits: float  # n_tr · BPS: what one connected device sends in a round
    device_joules_per_bit: float  # 1 / EE^d
    compute_joules: NDArray[np.float64]  # [N] τ_i, to train on one sample
    link_joules_per_bit: FloatMatrix | LinkEfficiencies  # [N, N] 1 / EE^{ij}, row receives
    model_bits: float  # BPM: a model in float32, as the price list counts it
    sample_upload_bits: float | None = None  # BPS, where every image sent is charged for; None: every connected device
    drift: PriceDrift | None = None  # of the links' prices during a run; None: they stay as they are
    training_source: Source = Source.MODELLED  # or calibrated
    counts_measured: bool = False  # whether measured joules are charged where there are some
    overhead_bits: float = 0.0  # of a message, besides its model
    local_passes: int | None = None  # of a round, where τ is for a sample and pass; None: for a sample (D6)

    def __post_init__(self) -> None:
        for array in (self.compute_joules, self.link_joules_per_bit):
            if isinstance(array, np.ndarray):
                array.setflags(write=False)

    @property
    def num_servers(self) -> int:
        """N."""
        return len(self.compute_joules)

    @cached_property
    def link_joules(self) -> FloatMatrix:
        """σ^{ij} of every link, drawn or not, Eq. (6): what a whole float32 model costs.  # [N, N]."""
        joules = (self.model_bits + self.overhead_bits) * self._table
        joules.setflags(write=False)
        return joules

    def apply_drift(self, joules: FloatColumn, links: LinkTable, t: int) -> FloatColumn:  # [E] -> [E]
        """Prices of links as they are in round t."""
        return joules if self.drift is None else joules * self.drift.factor(t, links.receiver, links.sender)

    def joules_of(self, links: LinkTable) -> FloatColumn:  # -> [E]
        """Joules of the links that are considered; makes no matrix where there is none."""
        known = self.link_joules_per_bit
        if isinstance(known, LinkEfficiencies):
            return (self.model_bits + self.overhead_bits) * known[links.receiver, links.sender]
        return (self.model_bits + self.overhead_bits) * links.from_dense(known)

    def with_overhead(self, share: float) -> float:
        """The price of a message with this share of a float32 model, as a share of that of a whole one."""
        whole = self.model_bits + self.overhead_bits
        return share if not self.overhead_bits else (share * self.model_bits + self.overhead_bits) / whole

    @property
    def _table(self) -> FloatMatrix:
        links = self.link_joules_per_bit
        return links.table() if isinstance(links, LinkEfficiencies) else links

    def upload(self, t: int, server: int, num_online: int, num_samples: int) -> EnergyRow:
        """E^dt of one server: ψ for each device that connected, Eq. (4), or a price for each image that was sent.

        Eq. (4) has one ψ because all devices hold as many images. Where servers own different numbers of images, they
        do not, and what was sent is counted.
        """
        per_sample = self.sample_upload_bits
        bits = num_online * self.device_upload_bits if per_sample is None else num_samples * per_sample
        return EnergyRow(t, Cause.UPLOAD, None, server, bits, bits * self.device_joules_per_bit)

    def training(self, t: int, server: int, num_samples: int, effort: ServerEffort | None = None) -> EnergyRow:
        """E^cp of one server, Eq. (5): τ for each sample, or for each sample and pass; `effort` is that of its plan."""
        joules = self.count_charged(num_samples, effort) * float(self.compute_joules[server])
        return EnergyRow(t, Cause.TRAINING, server, server, 0.0, joules, self.training_source)

    def count_charged(self, num_samples: int, effort: ServerEffort | None) -> int:
        """How many times τ is charged for training on so many samples."""
        if self.local_passes is None:
            return num_samples
        return num_samples * (self.local_passes if effort is None else effort.passes)

    def link(
        self, t: int, receiver: int, sender: int, *, compression: float = 1.0, again: float = 0.0, hops: int = 1
    ) -> EnergyRow:
        """E^mt of one link, Eq. (6); `compression` is the share of a float32 model that was really sent.

        Of it, `again` was sent before. Every hop costs as much as the link: prices of links to a relay are not known.
        """
        overhead = self.overhead_bits if compression else 0.0  # nothing was sent: the receiver could not be reached
        bits, links = (self.model_bits * compression + overhead) * hops, self.link_joules_per_bit
        per_bit = links.one(receiver, sender) if isinstance(links, LinkEfficiencies) else float(links[receiver, sender])
        if self.drift is not None:
            per_bit *= float(self.drift.factor(t, receiver, sender))
        bits_again = self.model_bits * again * hops
        return EnergyRow(t, Cause.LINK, sender, receiver, bits, bits * per_bit, bits_again=bits_again, hops=hops)


def grow_prices(
    prices: EnergyPrices,
    seed: int,
    num_servers: int,
    *,
    weak_joules_per_sample: float,
    strong_joules_per_sample: float,
    link_kbit_per_joule: tuple[float, float],
) -> EnergyPrices:
    """The prices after servers joined: those known before stay, and those of new servers depend on nothing else."""
    known = prices.num_servers
    compute, joules_per_bit = np.zeros(num_servers), np.zeros((num_servers, num_servers))
    compute[:known], joules_per_bit[:known, :known] = prices.compute_joules, prices._table
    is_weak = draw_is_weak(seed, num_servers, known)
    for new in range(known, num_servers):
        compute[new] = weak_joules_per_sample if is_weak[new] else strong_joules_per_sample
        efficiency = stream(seed, "link-efficiency", new).uniform(*link_kbit_per_joule, size=(2, new))
        joules_per_bit[new, :new], joules_per_bit[:new, new] = 1 / (1000 * efficiency)
    return replace(prices, compute_joules=compute, link_joules_per_bit=joules_per_bit)


def draw_prices(
    seed: int,
    num_servers: int,
    *,
    num_devices: int,
    samples_per_device: float,
    bits_per_sample: int,
    model_bits: float,
    weak_joules_per_sample: float,
    strong_joules_per_sample: float,
    device_kbit_per_joule: float,
    link_kbit_per_joule: tuple[float, float],
    charge_samples: bool = False,
    with_table: bool = True,
    drift: PriceDrift | None = None,
    overhead_bits: float = 0.0,
    local_passes: int | None = None,
) -> EnergyPrices:
    """The prices of world `seed`: machines weak or strong with probability ½, link efficiencies uniform (D6).

    With `charge_samples` uploads are charged by the image, for servers that own different numbers of images. With
    `local_passes`, those of a usual round, training is charged by the sample and pass. Without a table of all links,
    those that are asked for are found one by one: the same, for very many servers.
    """
    is_weak = draw_is_weak(seed, num_servers)
    links = LinkEfficiencies(seed, num_servers, link_kbit_per_joule)
    return EnergyPrices(
        num_devices=num_devices,
        device_upload_bits=samples_per_device * bits_per_sample,
        device_joules_per_bit=1 / (1000 * device_kbit_per_joule),
        compute_joules=np.where(is_weak, weak_joules_per_sample, strong_joules_per_sample),
        link_joules_per_bit=links.table() if with_table else links,
        model_bits=model_bits,
        sample_upload_bits=float(bits_per_sample) if charge_samples else None,
        drift=drift,
        overhead_bits=overhead_bits,
        local_passes=local_passes,
    )
