"""From weights to probabilities to links: Algorithm 4 of the paper, made exact.

`cap_to_budget` turns log-weights into probabilities that sum to the budget, Eq. (17); `dependent_rounding`
draws exactly that many links, each with exactly its probability, Eq. (18). Neither touches its input: the
probabilities of the moment *before* rounding are what the unbiased estimate divides by.

* Capping with redistribution: T. Uchiya, A. Nakamura, M. Kudo. Algorithms for adversarial bandit problems with
  multiple plays. ALT 2010.
* Dependent rounding: R. Gandhi, S. Khuller, S. Parthasarathy, A. Srinivasan. Dependent rounding and its
  applications to approximation algorithms. J. ACM 53(3), 2006.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hatdfed.errors import ConfigError

Vector = NDArray[np.float64]
Mask = NDArray[np.bool_]
Indices = NDArray[np.intp]

# Bins in which the threshold of capping is looked for: many, so that few links are left to sort.
_BINS = 2048
# Links settled at a time: a block and its temporaries stay in the processor's cache.
_BLOCK = 1 << 16


def cap_to_budget(log_weights: Vector, budget: int, *, exploration: float = 0.0) -> Vector:  # [n], B -> [n]
    """Probabilities in [0, 1] that sum to `budget`, proportional to the weights below the cap, Eq. (17).

    Clipping `budget · w / Σw` at 1 loses the mass above 1. Here it goes to the links below the cap, and again
    until none exceeds 1, so Σp = budget (D12). A weight of −inf means the link cannot be drawn. `exploration` is the
    share of the budget that goes to all links alike, as in Exp3.M; the paper has none.
    """
    log_weights = np.asarray(log_weights, dtype=np.float64)
    _check_budget(log_weights, budget)
    if budget == 0:
        return np.zeros_like(log_weights)
    if exploration == 0:
        return _capped_at_one(log_weights, budget)
    drawable = log_weights > -np.inf
    floor = exploration * budget / np.count_nonzero(drawable)
    # Above the floor there is room for 1 − floor: in units of that room it is the same problem.
    above = _capped_at_one(log_weights, (1 - exploration) * budget / (1 - floor)) if floor < 1 else 0.0
    return np.where(drawable, np.minimum(floor + (1 - floor) * above, 1.0), 0.0)


def _capped_at_one(log_weights: Vector, total: float) -> Vector:
    """min(1, c·w) with the c for which it sums to `total`."""
    probability = _weights(log_weights)
    probability *= total / probability.sum()
    if probability.max() <= 1:
        return probability
    capped = _capped_links(log_weights, total)
    return _share(log_weights, capped, total - int(np.count_nonzero(capped)))


def clip_to_one(log_weights: Vector, budget: int) -> Vector:  # [n], B -> [n]
    """Probabilities as printed in Algorithm 4, line 4: min(budget · w / Σw, 1), mass above 1 lost (D12)."""
    log_weights = np.asarray(log_weights, dtype=np.float64)
    _check_budget(log_weights, budget)
    if budget == 0:
        return np.zeros_like(log_weights)
    weights = _weights(log_weights)
    weights *= budget / weights.sum()
    return np.minimum(weights, 1.0, out=weights)


def dependent_rounding(probability: Vector, rng: np.random.Generator, *, shuffle: bool = True) -> Mask:
    """Draw links so that link i is drawn with exactly `probability[i]` and the number drawn is exactly Σp.

    Links are paired at random and all disjoint pairs are settled in one vectorised sweep, Eq. (18). A sweep
    leaves at most one link of each pair open, so there are O(log n) sweeps and O(n) work. `shuffle=False`
    pairs neighbours in the order given, which makes the joint law a function of the order.
    """
    probability = np.asarray(probability, dtype=np.float64)  # [n], never written to
    if not (probability.min(initial=0.0) >= 0 and probability.max(initial=1.0) <= 1):
        raise ValueError("probabilities must lie in [0, 1]")
    drawn: Mask = probability >= 1
    still_open = np.flatnonzero((probability > 0) & ~drawn)
    if shuffle:
        rng.shuffle(still_open)
    blocks = [still_open[start : start + _BLOCK] for start in range(0, len(still_open), _BLOCK)]
    settled = [_settle(block, probability.take(block), drawn, rng, leave=_BLOCK // 32) for block in blocks]
    # The few that every block leaves open, each with a new value, settle among themselves.
    links = np.concatenate([still_open[:0], *(links for links, _ in settled)])
    value = np.concatenate([probability[:0], *(value for _, value in settled)])
    links, value = _settle(links, value, drawn, rng)
    # One link may be left with float dust around 0 or 1, because Σp is a whole number.
    drawn[links] = value > 0.5
    return drawn


def _settle(
    links: Indices, value: Vector, drawn: Mask, rng: np.random.Generator, *, leave: int = 1
) -> tuple[Indices, Vector]:
    """Sweep until at most `leave` links are open; returns them and their values."""
    while len(links) > leave:
        links, value = _sweep(links, value, drawn, rng)
    return links, value


def _sweep(links: Indices, value: Vector, drawn: Mask, rng: np.random.Generator) -> tuple[Indices, Vector]:
    """Settle neighbours in pairs, mark in `drawn` those that became 1, return the links still open and their values."""
    even = len(links) // 2 * 2
    first, second = links[0:even:2], links[1:even:2]
    kept_first, kept_value, other_drawn = _settle_pairs(value[0:even:2], value[1:even:2], rng)
    kept = np.where(kept_first, first, second)
    drawn[(first + second - kept)[other_drawn]] = True  # the other one of each pair
    is_open = (kept_value > 0) & (kept_value < 1)
    if not is_open.all():
        drawn[kept[kept_value >= 1]] = True
        kept, kept_value = kept[is_open], kept_value[is_open]
    if even < len(links):
        return np.append(kept, links[even:]), np.append(kept_value, value[even:])
    return kept, kept_value


def sequential_rounding(probability: Vector, rng: np.random.Generator) -> Mask:
    """The same draw, one pair at a time: an open link is carried along and meets the next open one.

    The plain form of `dependent_rounding`, slow and obvious, with a joint law that is known exactly for a given
    order (Deville and Tillé's pivotal method). The fast form is held against it in the tests.
    """
    value = np.array(probability, dtype=np.float64)
    carry: int | None = None
    for link in range(len(value)):
        if not 0 < value[link] < 1:
            continue
        if carry is None:
            carry = link
            continue
        kept_first, kept_value, other_drawn = _settle_pairs(value[[carry]], value[[link]], rng)
        kept, other = (carry, link) if kept_first[0] else (link, carry)
        value[kept], value[other] = kept_value[0], other_drawn[0]
        carry = kept if 0 < value[kept] < 1 else None
    return value > 0.5


def is_valid_draw(mask: Mask, probability: Vector) -> bool:
    """Whether `mask` can be a draw from `probability`: the right number, all of the sure ones, none of the others."""
    right_size = int(mask.sum()) == round(float(probability.sum()))
    return bool(right_size and mask[probability >= 1].all() and not mask[probability <= 0].any())


def _settle_pairs(
    first: Vector, second: Vector, rng: np.random.Generator
) -> tuple[Mask, Vector, Mask]:  # [m], [m] -> is the first kept open, the value kept, is the other one drawn
    """Eq. (18) for m disjoint pairs: one of each becomes 0 or 1, sums and expectations stay.

    With s = p_i + p_j, the printed θ and δ give two cases. For s ≤ 1 the pair becomes (s, 0) with probability
    p_i / s, else (0, s). For s > 1 it becomes (1, s − 1) with probability (1 − p_j) / (2 − s), else (s − 1, 1).
    Written this way the settled one is exactly 0 or 1, and the other one keeps s or s − 1.
    """
    total = first + second
    over = total > 1
    # Both cases as one comparison, u · {s, 2 − s} < {p_i, 1 − p_j}, without a branch for each pair.
    first_wins = rng.random(len(total)) * np.abs(2.0 * over - total) < first + over * (1 - total)
    return first_wins != over, total - over, over


def _check_budget(log_weights: Vector, budget: int) -> None:
    low, top = log_weights.min(initial=0.0), log_weights.max(initial=-np.inf)  # nan if there is one
    if not (low <= np.inf and top < np.inf):
        raise ValueError("log-weights must be numbers below infinity")
    drawable = log_weights.size if low > -np.inf else int(np.count_nonzero(log_weights > -np.inf))
    if not 0 <= budget <= drawable:
        raise ConfigError(
            f"The budget is {budget} links, but {drawable} can be drawn. Use a budget between 0 and {drawable}."
        )


def _capped_links(log_weights: Vector, budget: float) -> Mask:
    """Which links get probability 1, found without sorting them all.

    A link is capped when its log-weight is above the x at which f(x) = Σ min(w / e^x, 1) equals the budget. f falls
    with x and is cheap to know at the edges of bins: the links above an edge count 1 each, those below it enter by
    their sum, kept as a logarithm. So one pass finds the bin of x, and only the links in that bin are sorted.
    """
    top = log_weights.max()
    low = log_weights.min()
    if low == -np.inf:
        low = np.min(log_weights, where=log_weights > -np.inf, initial=top)
    if low == top:
        return log_weights > -np.inf
    bin_of, log_sum, in_bin, edge = _binned(log_weights, low, top)
    log_sum_to = np.logaddexp.accumulate(log_sum)
    num_above = len(log_weights) - np.cumsum(in_bin)
    home = int(np.argmax(num_above + np.exp(log_sum_to - edge) <= budget))
    capped: Mask = bin_of > home
    log_sum_below = log_sum_to[home - 1] if home else -np.inf
    inside = np.flatnonzero(bin_of == home)
    capped[_largest_over(log_weights, inside, log_sum_below, budget - int(num_above[home]))] = True
    return capped


def _binned(log_weights: Vector, low: float, top: float) -> tuple[NDArray[np.int16], Vector, Indices, Vector]:
    """The bin of each link, and for each bin the log of its summed weights, its count and its upper edge."""
    width = (top - low) / _BINS
    edge = np.linspace(low, top, _BINS + 1)[1:]
    bin_of: NDArray[np.int16] = np.empty(log_weights.shape, dtype=np.int16)
    count: Indices = np.zeros(_BINS, dtype=np.intp)
    weight: Vector = np.zeros(_BINS)
    for start in range(0, len(log_weights), _BLOCK):
        part = log_weights[start : start + _BLOCK]
        # −inf goes to the lowest bin, where it weighs nothing; the largest goes to the last one.
        place = ((np.maximum(part, low) - low) * ((1 - 1e-12) / width)).astype(np.intp)
        bin_of[start : start + _BLOCK] = place
        count += np.bincount(place, minlength=_BINS)
        weight += np.bincount(place, weights=np.exp(part - edge[place]), minlength=_BINS)
    with np.errstate(divide="ignore"):
        return bin_of, edge + np.log(weight), count, edge


def _largest_over(log_weights: Vector, inside: Indices, log_sum_below: float, remaining: float) -> Indices:
    """Those of the links `inside` that exceed 1 when `remaining` is shared among them and all smaller ones."""
    if remaining == 0:  # the links above take it all
        return inside[:0]
    ascending = inside[np.argsort(log_weights[inside])]
    values = log_weights[ascending]
    log_sum = np.logaddexp.accumulate(np.concatenate([[log_sum_below], values]))[1:]  # it and all smaller ones
    to_share = remaining - np.arange(len(values) - 1, -1, -1)  # when all larger ones are capped
    fits = (to_share > 0) & (np.log(np.where(to_share > 0, to_share, 1)) + values - log_sum <= 0)
    num_fitting = int(np.flatnonzero(fits)[-1]) + 1 if fits.any() else 0
    return ascending[num_fitting:]


def _share(log_weights: Vector, capped: Mask, remaining: float) -> Vector:
    """1 for the capped, `remaining` split among the others in proportion to their weights."""
    if remaining == 0:
        return capped.astype(np.float64)
    uncapped = log_weights.copy()
    np.putmask(uncapped, capped, -np.inf)
    probability = _weights(uncapped, out=uncapped)
    probability *= remaining / probability.sum()
    np.putmask(probability, capped, 1.0)
    return np.minimum(probability, 1.0, out=probability)


def _weights(log_weights: Vector, out: Vector | None = None) -> Vector:
    """Weights relative to the largest: every exponent is at most 0, so nothing overflows."""
    weights: Vector = np.subtract(log_weights, log_weights.max(), out=out)
    np.exp(weights, out=weights)
    return weights
