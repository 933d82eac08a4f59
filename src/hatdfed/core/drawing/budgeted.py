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

# Links settled at a time: a block and its temporaries stay in the processor's cache.
_BLOCK = 1 << 16
# Above one block, links are drawn in groups: of at most so many, and of so small a sum that few reach 1.
_LARGEST_GROUP = 64
_MEAN_GROUP_SUM = 1 / 8


def cap_to_budget(log_weights: Vector, budget: int, *, exploration: float = 0.0) -> Vector:  # any shape -> the same
    """Probabilities in [0, 1] that sum to `budget`, proportional to the weights below the cap, Eq. (17).

    Clipping `budget · w / Σw` at 1 loses the mass above 1. Here it goes to the links below the cap, and again
    until none exceeds 1, so Σp = budget (D12). A weight of −inf means the link cannot be drawn. `exploration` is the
    share of the budget that goes to all links alike, as in Exp3.M; the paper has none.
    """
    log_weights = np.asarray(log_weights, dtype=np.float64)
    top = _check_budget(log_weights, budget)
    if budget == 0:
        return np.zeros_like(log_weights)
    if exploration == 0:
        return _cap_at_one(log_weights, top, budget)
    drawable = log_weights > -np.inf
    floor = exploration * budget / np.count_nonzero(drawable)
    # Above the floor there is room for 1 − floor: in units of that room it is the same problem.
    above = _cap_at_one(log_weights, top, (1 - exploration) * budget / (1 - floor)) if floor < 1 else 0.0
    return np.where(drawable, np.minimum(floor + (1 - floor) * above, 1.0), 0.0)


def _cap_at_one(log_weights: Vector, top: float, total: float) -> Vector:
    """min(1, c·w) with the c for which it sums to `total`."""
    probability = np.empty_like(log_weights)
    scale = total / _weigh(log_weights, top, probability)
    if scale > 1:  # as the weight of the top is
        return _share_below_the_cap(log_weights, total, probability)
    probability *= scale
    return probability


def clip_to_one(log_weights: Vector, budget: int) -> Vector:  # any shape -> the same
    """Probabilities as printed in Algorithm 4, line 4: min(budget · w / Σw, 1), mass above 1 lost (D12)."""
    log_weights = np.asarray(log_weights, dtype=np.float64)
    top = _check_budget(log_weights, budget)
    if budget == 0:
        return np.zeros_like(log_weights)
    probability = np.empty_like(log_weights)
    sum_of_weights = _weigh(log_weights, top, probability)
    probability *= budget / sum_of_weights
    return np.minimum(probability, 1.0, out=probability)


def dependent_rounding(probability: Vector, rng: np.random.Generator, *, shuffle: bool = True) -> Mask:
    """Draw links so that link i is drawn with exactly `probability[i]` and the number drawn is exactly Σp.

    Links are paired at random and all disjoint pairs are settled in one vectorised sweep, Eq. (18). A sweep
    leaves at most one link of each pair open, so there are O(log n) sweeps and O(n) work. Many links of which few
    are drawn meet in random groups first. `shuffle=False` pairs neighbours in the order given, which makes the joint
    law a function of the order.
    """
    probability = np.asarray(probability, dtype=np.float64)  # [n], never written to
    if not (probability.min(initial=0.0) >= 0 and probability.max(initial=1.0) <= 1):
        raise ValueError("probabilities must lie in [0, 1]")
    if shuffle and len(probability) > _BLOCK and (size := _group_size(probability)) > 1:
        return grouped_rounding(probability, rng, size)
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


def grouped_rounding(probability: Vector, rng: np.random.Generator, size: int) -> Mask:  # [n] -> [n]
    """The same draw with groups of `size` links in place of links: most are never looked at one by one.

    When the pairs within a group that sums to s < 1 are settled, Eq. (18), one link is left open with value s: link i
    with probability p_i / s. What becomes of it does not depend on which one it is, so groups are drawn with their s,
    and the link is chosen in the groups that were drawn only. Groups that reach 1 are taken apart again.
    """
    shift = rng.integers(len(probability) // size, size=size)
    total = _group_sums(probability, shift)
    whole = np.flatnonzero(total < 1)
    apart = np.concatenate(
        [
            _members(np.flatnonzero(total >= 1), shift, len(total)).ravel(),
            np.arange(total.size * size, len(probability)),
        ]
    )
    chosen = dependent_rounding(np.concatenate([total[whole], probability[apart]]), rng)
    drawn: Mask = np.zeros(len(probability), dtype=bool)
    drawn[apart[chosen[len(whole) :]]] = True
    members = _members(whole[chosen[: len(whole)]], shift, len(total))  # [groups drawn, size]
    sum_to = np.cumsum(probability[members], axis=1)
    pick = (sum_to <= rng.random((len(members), 1)) * sum_to[:, -1:]).sum(axis=1)
    drawn[members[np.arange(len(members)), pick]] = True
    return drawn


def _group_size(probability: Vector) -> int:
    return int(min(_LARGEST_GROUP, _MEAN_GROUP_SUM * len(probability) / max(float(probability.sum()), 1.0)))


def _group_sums(probability: Vector, shift: Indices) -> Vector:  # [n], [size] -> [groups]
    """Sums of groups that take one link of each row of a [size, groups] table, every row turned by its `shift`.

    Turning rows by chance puts two links of different rows together as often as a shuffle would, 1 / groups, and those
    of the same row never. It is read in order, where a shuffle of a million links waits for memory.
    """
    total: Vector = np.zeros(len(probability) // len(shift))
    for start, by in zip(range(0, len(total) * len(shift), len(total)), shift.tolist(), strict=True):
        row = probability[start : start + len(total)]
        total[: len(total) - by] += row[by:]
        total[len(total) - by :] += row[:by]
    return total


def _members(group: Indices, shift: Indices, num_groups: int) -> Indices:  # [m], [size] -> [m, size]
    """The links of each group: in row r the one that `shift[r]` brought there."""
    members: Indices = (group[:, None] + shift) % num_groups + num_groups * np.arange(len(shift))
    return members


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


def _check_budget(log_weights: Vector, budget: int) -> float:
    """Refuses what cannot be drawn; returns the largest log-weight."""
    low, top = log_weights.min(initial=0.0), log_weights.max(initial=-np.inf)  # nan if there is one
    if not (low <= np.inf and top < np.inf):
        raise ValueError("log-weights must be numbers below infinity")
    drawable = log_weights.size if low > -np.inf else int(np.count_nonzero(log_weights > -np.inf))
    if not 0 <= budget <= drawable:
        raise ConfigError(
            f"The budget is {budget} links, but {drawable} can be drawn. Use a budget between 0 and {drawable}."
        )
    return float(top)


def _share_below_the_cap(log_weights: Vector, total: float, out: Vector) -> Vector:
    """1 for the links above the cap, the rest of `total` split among the others in proportion to their weights."""
    cap = _largest_below_the_cap(log_weights, total)
    np.copyto(out, log_weights)
    capped = np.flatnonzero(log_weights > cap)
    out.put(capped, -np.inf)
    sum_of_weights = _weigh(out, cap, out)
    out *= min((total - len(capped)) / sum_of_weights, 1.0)  # above 1 by float dust only; no weight is
    out.put(capped, 1.0)
    return out


def _largest_below_the_cap(log_weights: Vector, total: float) -> float:
    """The largest log-weight that does not exceed 1 when the larger ones have 1 and it shares the rest.

    No more than `total` links can have 1, so only as many of the largest are sorted; the others enter by their sum,
    kept as a logarithm, since a weight may be far too small for a number.
    """
    if log_weights.min() == -np.inf:
        log_weights = log_weights[log_weights > -np.inf]
    num_sorted = min(int(total) + 1, log_weights.size)
    parted = np.partition(log_weights, log_weights.size - num_sorted, axis=None)
    below, values = parted[:-num_sorted], np.sort(parted[-num_sorted:])
    with np.errstate(divide="ignore"):
        log_sum_below = values[0] + np.log(_weigh(below, values[0], below))
        to_share = np.log(np.maximum(total - np.arange(num_sorted - 1, -1, -1), 0))  # when all larger ones have 1
    log_sum = np.logaddexp.accumulate(np.concatenate([[log_sum_below], values]))[1:]  # it and all smaller ones
    fits = to_share + values - log_sum <= 0
    fits[0] = True  # at most one link's worth is left for it, but for float dust
    return float(values[np.flatnonzero(fits)[-1]])


def _weigh(log_weights: Vector, top: float, out: Vector) -> float:
    """Write the weights relative to `top`, which none exceeds, so that nothing overflows; returns their sum."""
    total, rows = 0.0, max(1, _BLOCK // max(1, log_weights[:1].size))
    for start in range(0, len(log_weights), rows):
        part = out[start : start + rows]
        np.subtract(log_weights[start : start + rows], top, out=part)
        np.exp(part, out=part)
        total += float(part.sum())
    return total
