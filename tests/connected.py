"""Whether models can spread over a topology."""

import numpy as np


def is_strongly_connected(topology):
    """Whether a model can reach every server from every other along the links of this round."""
    return _reaches_all(topology.links) and _reaches_all(topology.links.T)


def _reaches_all(links):
    reached = np.zeros(len(links), dtype=bool)
    frontier = reached.copy()
    frontier[:1] = True
    while frontier.any():
        reached |= frontier
        frontier = links[frontier].any(axis=0) & ~reached
    return bool(reached.all())
