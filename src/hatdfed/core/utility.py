"""What a link was worth in a round: accuracy gained against joules spent, Eqs. (9)–(11).

The utility is defined for all links, drawn or not, and lies in [0, 1]. For making such numbers out of gains and joules
the paper says "softmax", which on joules is one-hot and on accuracies flat; here it is a named choice (D7).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hatdfed.core.energy.energy_model import EnergyPrices
from hatdfed.core.links import BoolColumn, FloatColumn, LinkTable
from hatdfed.core.round import LinkDraw, RoundReport
from hatdfed.errors import require_one_of

Vector = NDArray[np.float64]


class RoundFacts(NamedTuple):
    """What a round's utility is computed from."""

    gain: Vector  # [N] P_k − P_{k−1}, accuracies as fractions
    upload_joules: Vector  # [N] E^dt, as reported
    compute_joules: Vector  # [N] E^cp, as reported
    prices: EnergyPrices  # of the machines
    links: LinkTable  # that are considered
    link_joules: FloatColumn  # [E] E^mt of every link, drawn or not: what a message costs there
    possible: BoolColumn  # [E] links that exist: both ends active
    draw: LinkDraw
    report: RoundReport


Table = NDArray[np.float64]  # [N, d] a column of links with one row for each receiver
Normalisation = Callable[[Vector], Vector]  # any real numbers -> [0, 1]
Score = Callable[[RoundFacts, Normalisation], Table]  # [N, d], or [N, 1] where those of a row are alike


def softmax(values: Vector) -> Vector:
    """Shares that sum to 1, as the paper prints Norm."""
    weights = np.exp(values - values.max(initial=-np.inf))
    shares: Vector = weights / weights.sum()
    return shares


def softmax_standardised(values: Vector) -> Vector:
    """Softmax of z-scores: as printed, but blind to the unit of measurement."""
    spread = values.std() if len(values) else 0.0
    return softmax((values - values.mean()) / spread if spread > 0 else np.zeros_like(values))


def minmax(values: Vector) -> Vector:
    """0 for the smallest, 1 for the largest; ½ for all when they are equal."""
    result = np.array(values, dtype=np.float64)
    _stretch(result, result)
    return result


def _stretch(values: Vector, counting: Vector) -> None:
    """Minmax in place, with the smallest and the largest of those that count."""
    low, high = counting.min(initial=np.inf), counting.max(initial=-np.inf)
    if high > low:
        values -= low
        values /= high - low
    else:
        values.fill(0.5)


NORMALISATIONS: Mapping[str, Normalisation] = {
    "softmax": softmax,
    "softmax-standardised": softmax_standardised,
    "minmax": minmax,
}


def gain_of_receiver(facts: RoundFacts, norm: Normalisation) -> Table:
    """S^p, Eq. (11): every link into a server has that server's accuracy gain, normalised over all links."""
    if norm is minmax:  # it does not matter how many links share a value
        has_links = facts.links.by_receiver(facts.possible).any(axis=1)
        gain = np.zeros_like(facts.gain)
        gain[has_links] = minmax(facts.gain[has_links])
        return gain[:, None]
    return facts.links.by_receiver(_normalise(facts.links.at_receivers(facts.gain), facts.possible, norm))


def gain_of_server_times_importance(facts: RoundFacts, norm: Normalisation) -> Table:
    """S^p as the released code has it: softmax over servers of the gain in percent, times q of the link (D8)."""
    share = softmax(100 * facts.gain)
    return share[:, None] * facts.links.by_receiver(np.nan_to_num(facts.report.importance(facts.links)))


def thrift_in_joules(facts: RoundFacts, norm: Normalisation) -> Table:
    """S^c, Eq. (10): 1 − Norm of the sender's uploads, its training and the link itself, over all links."""
    cost = facts.links.at_senders(facts.upload_joules + facts.compute_joules)
    cost += facts.link_joules
    if norm is minmax and facts.possible.all():  # in place, for fleets of thousands
        _stretch(cost, cost)
    else:
        cost = _normalise(cost, facts.possible, norm)
    return facts.links.by_receiver(np.subtract(1, cost, out=cost))


def thrift_in_unit_costs(facts: RoundFacts, norm: Normalisation) -> Table:
    """S^c as the released code has it: 1 − softmax over the *drawn* links of small unit costs, not joules (D8).

    A link costs 1 or 2, training 1 or 2 times the share of devices that came, each such device 0.4. Here the dearer
    half of the links and the weaker machines are the ones that cost 2.
    """
    prices, drawn, possible = facts.prices, facts.draw.drawn, facts.link_joules[facts.possible]
    link = np.where(facts.link_joules > (np.median(possible) if possible.size else 0.0), 2.0, 1.0)
    machine = np.where(prices.compute_joules > prices.compute_joules.min(), 2.0, 1.0)
    online = facts.upload_joules / (prices.device_upload_bits * prices.device_joules_per_bit)
    sender = machine * online / prices.num_devices + 0.4 * online
    share = _normalise(facts.links.at_senders(sender) + link, drawn, softmax)
    return facts.links.by_receiver(np.where(drawn, 1 - share, 1.0))


GAINS: Mapping[str, Score] = {"receiver": gain_of_receiver, "released": gain_of_server_times_importance}
THRIFTS: Mapping[str, Score] = {"joules": thrift_in_joules, "released": thrift_in_unit_costs}


@dataclass(frozen=True)
class LinkUtility:
    """u = α·S^p + (1 − α)·S^c, Eq. (9)."""

    gain_share: float = 0.6  # α
    normalisation: str = "minmax"
    gain: str = "receiver"
    thrift: str = "joules"

    def __post_init__(self) -> None:
        require_one_of("utility.normalisation", self.normalisation, NORMALISATIONS)
        require_one_of("utility.gain", self.gain, GAINS)
        require_one_of("utility.thrift", self.thrift, THRIFTS)

    def __call__(self, facts: RoundFacts) -> FloatColumn:  # -> [E]
        """Utility of every link; 0 where none is possible."""
        norm = NORMALISATIONS[self.normalisation]
        gain, thrift = GAINS[self.gain](facts, norm), THRIFTS[self.thrift](facts, norm)
        utility = np.multiply(1 - self.gain_share, thrift, out=thrift)  # scores are made anew for every call
        utility += self.gain_share * gain
        np.clip(utility, 0.0, 1.0, out=utility)
        column = utility.reshape(-1)
        column[~facts.possible] = 0.0
        return column


def _normalise(values: FloatColumn, where: BoolColumn, norm: Normalisation) -> FloatColumn:
    """`norm` over the entries that count; 0 elsewhere."""
    result = np.zeros(values.shape)
    if where.any():
        result[where] = norm(values[where])
    return result
