"""How far the servers' models are from each other: the mean of ‖x_i − x̄‖ over servers, relative to ‖x̄‖.

Models are those after the merge, as servers store and evaluate them; under push-sum these are the de-biased ones.
Where all of them lie in one place the distance is computed from them (`hatdfed.server.consensus`). Where they lie apart
none is moved for it: every server tells a sketch, a linear map of its model to a few hundred numbers that keeps lengths
nearly. Because it is linear, the mean of the sketches is the sketch of the mean model, and the same formula applies.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

# Numbers of a sketch. A prime, so that layers whose sizes are powers of two spread evenly over them. A length is
# estimated with a relative standard error of 1/√(2 · SKETCH_SIZE), a distance over a length with 1/√SKETCH_SIZE.
SKETCH_SIZE = 509

Sketch = NDArray[np.float32]  # [SKETCH_SIZE]


def estimate_consensus_distance(sketches: Sequence[Sketch | None]) -> float | None:
    """From the sketches of all servers that took part.

    None where one of them is missing or not finite, or where the mean model is 0.
    """
    known = [sketch for sketch in sketches if sketch is not None and np.isfinite(sketch).all()]
    if not known or len(known) < len(sketches):
        return None
    models = np.stack(known).astype(np.float64)
    mean = models.mean(axis=0)
    length = np.linalg.norm(mean)
    return float(np.linalg.norm(models - mean, axis=1).mean() / length) if length > 0 else None
