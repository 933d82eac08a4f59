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

from hatdfed.core.energy.prices import EnergyPrices
from hatdfed.core.links import BoolMatrix, FloatMatrix, Indices, are_all_links, off_diagonal
from hatdfed.errors import require_one_of

Vector = NDArray[np.float64]


class RoundFacts(NamedTuple):
    """What a round's utility is computed from."""

    gain: Vector  # [N] P_k − P_{k−1}, accuracies as fractions
    upload_joules: Vector  # [N] E^dt, as reported
    compute_joules: Vector  # [N] E^cp, as reported
    prices: EnergyPrices  # E^mt of every link, drawn or not
    drawn: BoolMatrix  # [N, N or d]
    importance: FloatMatrix  # [N, N or d] q, nan where no model came
    possible: BoolMatrix  # [N, N or d] links that exist: off the diagonal, both ends active
    candidates: Indices | None = None  # [N, d] whom tables of links are about; None: everybody
    candidate_joules: FloatMatrix | None = None  # [N, d] E^mt of their links

    @property
    def link_joules(self) -> FloatMatrix:
        """[N, N or d] σ of the links that are considered."""
        return self.prices.link_joules if self.candidate_joules is None else self.candidate_joules

    def of_sender(self, values: Vector) -> FloatMatrix:  # [N] -> [1, N] or [N, d]
        """A number of every server at the links that it sends along."""
        return values[None, :] if self.candidates is None else values[self.candidates]


Normalisation = Callable[[Vector], Vector]  # any real numbers -> [0, 1]
Score = Callable[[RoundFacts, Normalisation], FloatMatrix]  # [N, N], or [N, 1] where those of a row are alike


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


def gain_of_receiver(facts: RoundFacts, norm: Normalisation) -> FloatMatrix:
    """S^p, Eq. (11): every link into a server has that server's accuracy gain, normalised over all links."""
    if norm is minmax:  # it does not matter how many links share a value
        has_links = facts.possible.any(axis=1)
        gain = np.zeros_like(facts.gain)
        gain[has_links] = minmax(facts.gain[has_links])
        return gain[:, None]
    return _normalised(np.broadcast_to(facts.gain[:, None], facts.possible.shape), facts.possible, norm)


def gain_of_server_times_importance(facts: RoundFacts, norm: Normalisation) -> FloatMatrix:
    """S^p as the released code has it: softmax over servers of the gain in percent, times q of the link (D8)."""
    share = softmax(100 * facts.gain)
    return share[:, None] * np.nan_to_num(facts.importance)


def thrift_in_joules(facts: RoundFacts, norm: Normalisation) -> FloatMatrix:
    """S^c, Eq. (10): 1 − Norm of the sender's uploads, its training and the link itself, over all links."""
    cost = facts.of_sender(facts.upload_joules + facts.compute_joules) + facts.link_joules
    if norm is minmax and facts.candidates is not None and facts.possible.all():
        _stretch(cost, cost)
    elif norm is minmax and are_all_links(facts.possible):  # in place, for fleets of thousands
        _stretch(cost, off_diagonal(cost))
    else:
        cost = _normalised(cost, facts.possible, norm)
    return np.subtract(1, cost, out=cost)


def thrift_in_unit_costs(facts: RoundFacts, norm: Normalisation) -> FloatMatrix:
    """S^c as the released code has it: 1 − softmax over the *drawn* links of small unit costs, not joules (D8).

    A link costs 1 or 2, training 1 or 2 times the share of devices that came, each such device 0.4. Here the dearer
    half of the links and the weaker machines are the ones that cost 2.
    """
    prices, link_joules = facts.prices, facts.link_joules
    possible = link_joules[facts.possible]
    link = np.where(link_joules > (np.median(possible) if possible.size else 0.0), 2.0, 1.0)
    machine = np.where(prices.compute_joules > prices.compute_joules.min(), 2.0, 1.0)
    online = facts.upload_joules / (prices.device_upload_bits * prices.device_joules_per_bit)
    sender = machine * online / prices.num_devices + 0.4 * online
    return np.where(facts.drawn, 1 - _normalised(facts.of_sender(sender) + link, facts.drawn, softmax), 1.0)


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

    @property
    def reads_importance(self) -> bool:
        """Whether q of the links plays a part: a coordinator of many servers need not gather it otherwise."""
        return self.gain == "released"

    def __call__(self, facts: RoundFacts) -> FloatMatrix:  # -> [N, N]
        """Utility of every link; 0 where none is possible."""
        norm = NORMALISATIONS[self.normalisation]
        gain, thrift = GAINS[self.gain](facts, norm), THRIFTS[self.thrift](facts, norm)
        utility = np.multiply(1 - self.gain_share, thrift, out=thrift)  # scores are made anew for every call
        utility += self.gain_share * gain
        np.clip(utility, 0.0, 1.0, out=utility)
        if are_all_links(facts.possible):
            np.fill_diagonal(utility, 0.0)
        else:
            utility[~facts.possible] = 0.0
        return utility


def _normalised(values: FloatMatrix, where: BoolMatrix, norm: Normalisation) -> FloatMatrix:
    """`norm` over the entries that count; 0 elsewhere."""
    result = np.zeros(values.shape)
    if where.any():
        result[where] = norm(values[where])
    return result
