"""What differentially private training gives away about one record, at most.

Every step of training releases the sum of clipped gradients with Gaussian noise of σ times the clipping norm, which is
1/(2σ²)-zCDP for every record in its batch; releases add up (M. Bun, T. Steinke. Concentrated differential privacy. TCC
2016). Batches of one pass share no record, so a record takes part in one release for each pass. That batches are drawn
at random makes them reveal less; this is not counted on.
"""

from __future__ import annotations

import math


def compute_epsilon(releases: int, noise: float, delta: float) -> float:
    """ε for `delta` after a record took part in so many releases; infinite without noise.

    >>> round(compute_epsilon(100, 5.0, 1e-5), 3)
    11.597
    """
    if releases == 0:
        return 0.0
    if noise == 0:
        return math.inf
    rho = releases / (2 * noise**2)
    return rho + 2 * math.sqrt(rho * math.log(1 / delta))
