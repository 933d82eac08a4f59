"""Links that leave nobody out: every server receives exactly `degree` models and is heard by exactly `degree` others.

`balance` turns log-weights into probabilities whose rows and columns all sum to the degree; `balanced_rounding` draws
links with exactly those probabilities and exactly those degrees. It is dependent rounding on a bipartite graph, senders
on one side and receivers on the other: R. Gandhi, S. Khuller, S. Parthasarathy, A. Srinivasan. Dependent rounding and
its applications to approximation algorithms. J. ACM 53(3), 2006.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hatdfed.core.links import BoolMatrix, FloatMatrix

_TOLERANCE = 1e-11  # of a row's or column's sum
_MOST_SWEEPS = 2_000
_SETTLED = 1e-9  # a probability this near to 0 or 1 is meant to be it
_FEW_OPEN = 4  # links a server, on average: walks settle so many as fast


def balance(log_weights: FloatMatrix, possible: BoolMatrix, degree: int) -> FloatMatrix | None:  # [N, N] -> [N, N]
    """Probabilities on the possible links, in proportion to the weights but for one factor a row and one a column.

    Rows and columns are scaled in turn until both fit (Sinkhorn), none above 1. None where that cannot be, as when a
    server can hear fewer than `degree` others, or would take too long, as with weights that are very far apart.
    """
    if not possible.size or (possible.sum(axis=1) < degree).any() or (possible.sum(axis=0) < degree).any():
        return None
    scaled = np.where(possible, log_weights, -np.inf)
    probability = np.exp(scaled - scaled.max(axis=1, keepdims=True))
    for _ in range(_MOST_SWEEPS):
        probability = rows_to(probability, degree)
        probability = rows_to(probability.T, degree).T
        if np.abs(probability.sum(axis=1) - degree).max() < _TOLERANCE * degree:
            return probability
    return None


def rows_to(probability: FloatMatrix, total: int) -> FloatMatrix:
    """Every row times the factor with which it sums to `total`, none of its entries above 1."""
    scaled: FloatMatrix = probability * (total / np.maximum(probability.sum(axis=1, keepdims=True), 1e-300))
    while (scaled > 1).any():
        full = scaled >= 1
        rest = np.where(full, 0.0, scaled)
        room = total - full.sum(axis=1, keepdims=True)
        scaled = np.where(full, 1.0, rest * (room / np.maximum(rest.sum(axis=1, keepdims=True), 1e-300)))
    return scaled


def balanced_rounding(probability: FloatMatrix, rng: np.random.Generator) -> BoolMatrix:  # [N, N] -> [N, N]
    """Links, each with its probability, whose degrees are the sums of the rows and columns, which must be whole.

    As every such sum is whole, whoever has one open link has another: a walk along open links comes back to where it
    was, after an even number of steps. Along that circle links are raised and lowered in turn, by as much as some link
    can bear, in one direction or the other so that every probability stays what it was in the mean. While most links
    are open, circles of four are settled by the thousand; walks settle the rest.
    """
    probability = _sweep(probability, rng)
    open_links = _open_links(probability)
    drawn = probability > 0.5
    receivers = [set(np.flatnonzero(row).tolist()) for row in open_links]
    senders = [set(np.flatnonzero(column).tolist()) for column in open_links.T]
    value = probability.tolist()
    while start := next((i for i, others in enumerate(receivers) if others), -1) + 1:
        circle = _circle(start - 1, receivers, senders)
        settled = _shift(circle, value, rng) if len(circle) > 1 else circle
        for i, j in settled:
            receivers[i].discard(j)
            senders[j].discard(i)
            drawn[i, j] = value[i][j] > 0.5
    return drawn


def _sweep(probability: FloatMatrix, rng: np.random.Generator) -> FloatMatrix:
    """Circles of two receivers and two senders, many at a time, until few links are open.

    Receivers are paired at random. A pair's circles share no sender; those of other pairs may, as every circle leaves
    the sum of each of its senders as it was.
    """
    value, size = probability.copy(), len(probability)
    half = size // 2
    open_links = _open_links(value)
    while open_links.sum() > _FEW_OPEN * size:
        rows = rng.permutation(size)[: 2 * half].reshape(2, half)
        both = open_links[rows[0]] & open_links[rows[1]]  # [half, N] senders that both still wait for
        order = np.argsort(np.where(both, rng.random(both.shape), 2.0), axis=1)
        one, other = order[:, 0 : 2 * half : 2], order[:, 1 : 2 * half : 2]
        _shift_circles(value, rows, one, other, np.take_along_axis(both, other, axis=1), rng)
        open_before, open_links = open_links, _open_links(value)
        if open_links.sum() > 0.99 * open_before.sum():
            break
    return value


def _shift_circles(
    value: FloatMatrix,
    rows: NDArray[np.intp],
    one: NDArray[np.intp],
    other: NDArray[np.intp],
    is_circle: BoolMatrix,
    rng: np.random.Generator,
) -> None:
    """`_shift` for circles (rows[0], one), (rows[0], other), (rows[1], other), (rows[1], one), in place."""
    first, second = value[rows[0]], value[rows[1]]
    up, down = np.take_along_axis(first, one, axis=1), np.take_along_axis(first, other, axis=1)
    down_too, up_too = np.take_along_axis(second, one, axis=1), np.take_along_axis(second, other, axis=1)
    forth = np.minimum(np.minimum(1 - up, 1 - up_too), np.minimum(down, down_too))
    back = np.minimum(np.minimum(up, up_too), np.minimum(1 - down, 1 - down_too))
    step = np.where(rng.random(forth.shape) * (forth + back) < back, forth, -back)
    step = np.where(is_circle, step, 0.0)
    for matrix, columns, moved in (
        (first, one, up + step),
        (first, other, down - step),
        (second, one, down_too - step),
        (second, other, up_too + step),
    ):
        np.put_along_axis(matrix, columns, moved, axis=1)
    value[rows[0]], value[rows[1]] = first, second


def _open_links(probability: FloatMatrix) -> BoolMatrix:
    result: BoolMatrix = (probability > _SETTLED) & (probability < 1 - _SETTLED)
    return result


Link = tuple[int, int]  # receiver and sender


def _circle(start: int, receivers: list[set[int]], senders: list[set[int]]) -> list[Link]:
    """A circle of open links, receiver by receiver and sender by sender in turn.

    Or one link alone, the only open one of a server: as the server's sum is whole, that link is 0 or 1 but for what
    rounding has left of its other links.
    """
    links: list[Link] = []
    seen = {(0, start): 0}  # side and server, and how many links led there
    side, here, before = 0, start, -1
    while True:
        for there in receivers[here] if side == 0 else senders[here]:
            if there != before:
                break
        else:
            return links[-1:]
        links.append((here, there) if side == 0 else (there, here))
        side, here, before = 1 - side, there, here
        if (side, here) in seen:
            return links[seen[side, here] :]
        seen[side, here] = len(links)


def _shift(circle: list[Link], value: list[list[float]], rng: np.random.Generator) -> list[Link]:
    """Move the circle's links as far as one of them can go; returns those that are settled by it."""
    ups, downs = circle[0::2], circle[1::2]
    high, low = [value[i][j] for i, j in ups], [value[i][j] for i, j in downs]
    forth, back = min(1 - max(high), min(low)), min(min(high), 1 - max(low))
    step = forth if rng.random() < back / (forth + back) else -back
    for i, j in ups:
        value[i][j] += step
    for i, j in downs:
        value[i][j] -= step
    return [(i, j) for i, j in circle if not _SETTLED < value[i][j] < 1 - _SETTLED]
