"""Links that leave nobody out, where every server considers d others only: the work is N·d, and no number is N × N.

What `regular.py` does with a matrix is done here with whole numbers. `balanced_units` turns log-weights into
probabilities that are multiples of 1 / UNITS and whose rows and columns sum to the degree exactly; `halving_rounding`
draws links with exactly those probabilities and exactly those degrees, bit by bit. Where all sums are even, the odd
entries have an even number in every row and column, so they form circles, and along each circle entries are raised and
lowered by one in turn: nothing is odd any more, no sum has changed, and every entry has gone up as likely as down.
That is the Euler partition of H. N. Gabow and O. Kariv. Algorithms for edge coloring bipartite graphs and multigraphs.
SIAM J. Computing 11(1), 1982.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hatdfed.core.drawing.regular import rows_to
from hatdfed.core.links import BoolMatrix, FloatMatrix, Indices

UNITS = 1 << 10
_TOLERANCE = 4 / UNITS  # of a column's sum; the rest is made up for in units
_MOST_SWEEPS = 300
_FAR = 1 << 40  # more than any column can have too many

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
        probability = _scale(probability, degree, candidates)
        probability = _scale(probability, degree, None)
        if np.abs(_column_sums(probability, candidates) - degree * active).max() < _TOLERANCE:
            break
    units = _whole_rows(rows_to(probability, degree), possible, degree * active)
    if (units.sum(axis=1) != degree * UNITS * active).any():
        return None
    _even_out(units, possible, candidates, degree * active)
    return units if _settle_columns(units, possible, candidates, degree * active) else None


def _scale(probability: FloatMatrix, total: int, columns: Indices | None) -> FloatMatrix:
    """Rows, or columns if their numbers are given, brought to `total`, as nearly as can be with none above 1."""
    scaled: FloatMatrix = probability * _at(total / np.maximum(_sums(probability, columns), 1e-300), columns)
    if scaled.max() <= 1:
        return scaled
    full = scaled >= 1
    rest = np.where(full, 0.0, scaled)
    room = total - _sums(full.astype(np.float64), columns)
    rest *= _at(room / np.maximum(_sums(rest, columns), 1e-300), columns)
    return np.where(full, 1.0, np.minimum(rest, 1.0, out=rest))


def _sums(table: FloatMatrix, columns: Indices | None) -> NDArray[np.float64]:  # [N, d] -> [N]
    return table.sum(axis=1) if columns is None else _column_sums(table, columns)


def _at(values: NDArray[np.float64], columns: Indices | None) -> FloatMatrix:  # [N] -> [N, 1] or [N, d]
    return values[:, None] if columns is None else values[columns]


def _column_sums(table: FloatMatrix | Units, candidates: Indices) -> NDArray[np.float64]:  # -> [N]
    return np.bincount(candidates.reshape(-1), table.reshape(-1), minlength=len(table)).astype(np.float64, copy=False)


def _whole_rows(probability: FloatMatrix, possible: BoolMatrix, total: Indices) -> Units:
    """Units whose rows sum to `total`: rounded down, and one more for the entries that lost most."""
    exact = UNITS * probability
    units = np.floor(exact).astype(np.int64)
    lost = np.where(possible & (units < UNITS), exact - units, -1.0)
    rank = np.argsort(np.argsort(-lost, axis=1), axis=1)
    units += rank < (UNITS * total - units.sum(axis=1))[:, None]
    return units


def _even_out(units: Units, possible: BoolMatrix, candidates: Indices, total: Indices) -> None:
    """Move units within rows, from columns that have too many to columns that have too few, many rows at a time."""
    everyone = np.arange(len(units))
    excess = _column_sums(units, candidates).astype(np.int64) - UNITS * total
    rows, whole = everyone, True
    while whole or len(rows):
        rows, whole = (everyone, True) if not len(rows) else (rows, len(rows) == len(units))
        here, have = excess[candidates[rows]], units[rows]
        room = np.where(possible[rows], UNITS - have, 0)
        giver = np.where(have > 0, here, -_FAR).argmax(axis=1)
        taker = np.where(room > 0, here, _FAR).argmin(axis=1)
        among = np.arange(len(rows))
        gap = here[among, giver] - here[among, taker]
        step = np.minimum(np.minimum(gap // 2, have[among, giver]), room[among, taker])
        willing = np.flatnonzero(step > 0)
        rows, giver, taker, step = rows[willing], giver[willing], taker[willing], step[willing]
        if not len(rows):
            if whole:
                return
            continue
        source, target = candidates[rows, giver], candidates[rows, taker]
        once = np.unique(source, return_index=True)[1]  # a column gives once, and takes once
        once = once[np.unique(target[once], return_index=True)[1]]
        units[rows[once], giver[once]] -= step[once]
        units[rows[once], taker[once]] += step[once]
        excess[source[once]] -= step[once]
        excess[target[once]] += step[once]


def _settle_columns(units: Units, possible: BoolMatrix, candidates: Indices, total: Indices) -> bool:
    """Send what few units are left along short paths to where they are missing; whether all found their place."""
    excess = _column_sums(units, candidates).astype(np.int64) - UNITS * total
    by_sender = np.argsort(candidates.reshape(-1), kind="stable").reshape(candidates.shape)  # [N, d] places of a column
    for column in np.repeat(np.arange(len(units)), np.maximum(excess, 0)).tolist():
        moves = _path(column, excess, units, possible, candidates, by_sender)
        if not moves:
            return False
        for giver, taker in moves:
            units.reshape(-1)[giver] -= 1
            units.reshape(-1)[taker] += 1
        excess[column] -= 1
        excess[candidates.reshape(-1)[moves[0][1]]] += 1
    return True


def _path(
    start: int, excess: Indices, units: Units, possible: BoolMatrix, candidates: Indices, by_sender: Indices
) -> list[tuple[int, int]]:
    """Moves of a unit, place to place, from column `start` to one with too few units, last one first; none: no way.

    A unit moves within a row, from a column that has some there to one that has room. As many columns as can be reached
    are looked at together, and from the other end those from which one move suffices.
    """
    width, flat = candidates.shape[1], candidates.reshape(-1)
    last = np.full((len(units), 2), -1)  # the move from each column to one with too few
    taker = by_sender[excess < 0].reshape(-1)
    taker = taker[(possible & (units < UNITS)).reshape(-1)[taker]]
    giver = (taker // width)[:, None] * width + np.arange(width)
    known = units.reshape(-1)[giver] > 0
    last[flat[giver[known]]] = np.stack([giver, np.broadcast_to(taker[:, None], giver.shape)], axis=2)[known]
    came = np.full((len(units), 2), -1)  # the move that first reached each column
    came[start] = 0
    reached = np.array([start])
    while len(reached):
        near = reached[last[reached, 0] >= 0]
        if len(near):
            return [tuple(last[near[0]].tolist()), *_way_to(int(near[0]), start, came, flat)]
        giver = by_sender[reached].reshape(-1)
        giver = giver[units.reshape(-1)[giver] > 0]
        row = giver // width
        fits = possible[row] & (units[row] < UNITS) & (came[candidates[row], 0] < 0)
        move, place = np.nonzero(fits)
        reached, first = np.unique(candidates[row[move], place], return_index=True)
        came[reached] = np.stack([giver[move], row[move] * width + place], axis=1)[first]
    return []


def _way_to(end: int, start: int, came: Indices, flat: Indices) -> list[tuple[int, int]]:
    moves: list[tuple[int, int]] = []
    while end != start:
        moves.append((int(came[end, 0]), int(came[end, 1])))
        end = int(flat[came[end, 0]])
    return moves


def halving_rounding(units: Units, candidates: Indices, rng: np.random.Generator) -> BoolMatrix:  # [N, d] -> [N, d]
    """Links, each with probability units / UNITS, whose degrees are the sums of rows and columns."""
    value = units.reshape(-1).copy()
    drawn: NDArray[np.bool_] = value == UNITS
    link = np.flatnonzero((value > 0) & ~drawn)  # still open, by receiver
    value = value[link]
    by_sender = np.argsort(candidates.reshape(-1)[link], kind="stable")
    for bit in (1 << level for level in range(UNITS.bit_length() - 1)):
        is_odd = (value & bit) > 0
        place = np.cumsum(is_odd) - 1
        same_sender = place[by_sender[is_odd[by_sender]]]
        value[is_odd] += np.where(_choose_raised(same_sender, rng), bit, -bit)
        drawn[link[value == UNITS]] = True
        is_open = (value > 0) & (value < UNITS)
        place = np.cumsum(is_open) - 1
        by_sender = place[by_sender[is_open[by_sender]]]
        link, value = link[is_open], value[is_open]
    return drawn.reshape(units.shape)


def _choose_raised(same_sender: Indices, rng: np.random.Generator) -> NDArray[np.bool_]:  # [n] -> [n]
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
