"""Links that leave nobody out, where every server considers d others only: the work is N·d, and no number is N × N.

What `balanced.py` does with a matrix is done here with whole numbers. `balanced_units` turns log-weights into
probabilities that are multiples of 1 / UNITS and whose rows and columns sum to the degree exactly; `halving_rounding`
draws links with exactly those probabilities and exactly those degrees, bit by bit. Where all sums are even, the odd
entries have an even number in every row and column, so they form circles, and along each circle entries are raised and
lowered by one in turn: nothing is odd any more, no sum has changed, and every entry has gone up as likely as down.
That is the Euler partition of H. N. Gabow and O. Kariv. Algorithms for edge coloring bipartite graphs and multigraphs.
SIAM J. Computing 11(1), 1982.
"""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from hatdfed.balanced import rows_to
from hatdfed.topology import BoolMatrix, FloatMatrix, Indices

UNITS = 1 << 12
_TOLERANCE = 1e-3  # of a column's sum; the rest is made up for in units
_MOST_SWEEPS = 300

Units = NDArray[np.int64]  # [N, d]


def balanced_units(
    log_weights: FloatMatrix, possible: BoolMatrix, candidates: Indices, active: NDArray[np.bool_], degree: int
) -> Units | None:  # tables of links [N, d], servers [N]
    """Probabilities of the possible links in units; those of every active server sum to the degree, both ways.

    They are nearly in proportion to the weights but for one factor a row and one a column. None where that cannot be.
    """
    heard_by = np.bincount(candidates[possible], minlength=len(active))
    if not active.any() or (possible.sum(axis=1)[active] < degree).any() or (heard_by[active] < degree).any():
        return None
    scaled = np.where(possible, log_weights, -np.inf)
    top = scaled.max(axis=1, keepdims=True)
    probability = np.exp(scaled - np.where(np.isfinite(top), top, 0.0))
    for _ in range(_MOST_SWEEPS):
        probability = rows_to(_columns_to(probability, candidates, degree), degree)
        sums = _column_sums(probability, candidates)
        if np.abs(sums - degree * active).max() < _TOLERANCE * degree:
            break
    units = _whole_rows(probability, degree * active)
    _even_out(units, possible, candidates, degree * active)
    return units if _settle_columns(units, possible, candidates, degree * active) else None


def _columns_to(probability: FloatMatrix, candidates: Indices, total: int) -> FloatMatrix:
    """Every column times the factor with which it sums to `total`, none of its entries above 1."""
    scaled: FloatMatrix = probability * _factors(total, probability, candidates)
    while (scaled > 1).any():
        full = scaled >= 1
        rest = np.where(full, 0.0, scaled)
        room = total - _column_sums(full.astype(np.float64), candidates)
        scaled = np.where(full, 1.0, rest * _factors(room, rest, candidates))
    return scaled


def _factors(total: int | NDArray[np.float64], table: FloatMatrix, candidates: Indices) -> FloatMatrix:
    factor: FloatMatrix = (total / np.maximum(_column_sums(table, candidates), 1e-300))[candidates]
    return factor


def _column_sums(table: NDArray[np.float64] | Units, candidates: Indices) -> NDArray[np.float64]:  # -> [N]
    return np.bincount(candidates.reshape(-1), table.reshape(-1), minlength=len(table)).astype(np.float64, copy=False)


def _whole_rows(probability: FloatMatrix, total: Indices) -> Units:
    """Units whose rows sum to `total`: rounded down, and one more for the entries that lost most."""
    exact = UNITS * probability
    units = np.floor(exact).astype(np.int64)
    lost = np.where((probability > 0) & (units < UNITS), exact - units, -1.0)
    rank = np.argsort(np.argsort(-lost, axis=1), axis=1)
    units += rank < (UNITS * total - units.sum(axis=1))[:, None]
    return units


def _even_out(units: Units, possible: BoolMatrix, candidates: Indices, total: Indices) -> None:
    """Move units within rows, from columns that have too many to columns that have too few, many rows at a time."""
    everyone = np.arange(len(units))
    excess = _column_sums(units, candidates).astype(np.int64) - UNITS * total
    while True:
        here = excess[candidates]
        giver = np.where(units > 0, here, -UNITS).argmax(axis=1)
        taker = np.where(possible & (units < UNITS), here, UNITS).argmin(axis=1)
        step = np.minimum((here[everyone, giver] - here[everyone, taker]) // 2, units[everyone, giver])
        step = np.minimum(step, UNITS - units[everyone, taker])
        row = np.flatnonzero(step > 0)
        if not len(row):
            return
        row = row[np.argsort(-step[row], kind="stable")]
        row = row[np.unique(candidates[row, giver[row]], return_index=True)[1]]  # a column gives and takes once
        row = row[np.unique(candidates[row, taker[row]], return_index=True)[1]]
        units[row, giver[row]] -= step[row]
        units[row, taker[row]] += step[row]
        excess[candidates[row, giver[row]]] -= step[row]
        excess[candidates[row, taker[row]]] += step[row]


def _settle_columns(units: Units, possible: BoolMatrix, candidates: Indices, total: Indices) -> bool:
    """Send what few units are left along shortest paths to where they are missing; whether all found their place."""
    excess = (_column_sums(units, candidates).astype(np.int64) - UNITS * total).tolist()
    rows_of = np.argsort(candidates.reshape(-1), kind="stable") // candidates.shape[1]
    first = np.searchsorted(np.sort(candidates.reshape(-1)), np.arange(len(units) + 1))
    for column in range(len(units)):
        while excess[column] > 0:
            path = _path(column, excess, units, possible, candidates, rows_of, first)
            if path is None:
                return False
            for row, giver, taker in path:
                units[row, giver] -= 1
                units[row, taker] += 1
            excess[column] -= 1
            excess[int(candidates[path[0][0], path[0][2]])] += 1
    return True


def _path(
    start: int,
    excess: list[int],
    units: Units,
    possible: BoolMatrix,
    candidates: Indices,
    rows_of: Indices,
    first: Indices,
) -> list[tuple[int, int, int]] | None:
    """Moves (row, giver's place, taker's place) that bring a unit from column `start` to one with too few."""
    came: dict[int, tuple[int, int, int]] = {start: (-1, -1, -1)}
    waiting = deque([start])
    while waiting:
        column = waiting.popleft()
        for row in rows_of[first[column] : first[column + 1]].tolist():
            giver = int(np.searchsorted(candidates[row], column))
            if units[row, giver] == 0:
                continue
            for taker in np.flatnonzero(possible[row] & (units[row] < UNITS)).tolist():
                other = int(candidates[row, taker])
                if other in came:
                    continue
                came[other] = (row, giver, taker)
                if excess[other] < 0:
                    return _back(other, came, candidates)
                waiting.append(other)
    return None


def _back(end: int, came: dict[int, tuple[int, int, int]], candidates: Indices) -> list[tuple[int, int, int]]:
    """The moves that led to column `end`, last one first."""
    moves = []
    while (move := came[end])[0] >= 0:
        moves.append(move)
        end = int(candidates[move[0], move[1]])
    return moves


def halving_rounding(units: Units, candidates: Indices, rng: np.random.Generator) -> BoolMatrix:  # [N, d] -> [N, d]
    """Links, each with probability units / UNITS, whose degrees are the sums of rows and columns."""
    value, by_sender = units.reshape(-1).copy(), np.argsort(candidates.reshape(-1), kind="stable")
    place = np.empty(len(value), dtype=np.int64)
    for bit in (1 << level for level in range(UNITS.bit_length() - 1)):
        odd = np.flatnonzero(value & bit)  # by receiver
        place[odd] = np.arange(len(odd))
        same_sender = place[by_sender[(value[by_sender] & bit) > 0]]
        value[odd] += np.where(_raised(same_sender, rng), bit, -bit)
    drawn: BoolMatrix = (value == UNITS).reshape(units.shape)
    return drawn


def _raised(same_sender: Indices, rng: np.random.Generator) -> NDArray[np.bool_]:  # [n] -> [n]
    """Which links are raised: of two neighbours by receiver, and of two neighbours in `same_sender`, always one.

    Every receiver has an even number of links, and every sender: so neighbours, two by two, share a server, and a walk
    from neighbour to neighbour, by sender and by receiver in turn, is a circle. Every other link of a circle belongs to
    one camp, which is known by its first link; the camps are found by leaps that double.
    """
    count = len(same_sender)
    partner = np.empty(count, dtype=np.int64)
    partner[same_sender[0::2]], partner[same_sender[1::2]] = same_sender[1::2], same_sender[0::2]
    camp, ahead = np.arange(count), partner ^ 1
    for _ in range(count.bit_length()):
        camp = np.minimum(camp, camp[ahead])
        ahead = ahead[ahead]
    other = camp[partner]
    coin = rng.random(count) < 0.5
    raised: NDArray[np.bool_] = (camp < other) ^ coin[np.minimum(camp, other)]
    return raised
