"""The directed links of one round.

Orientation, stated once and used everywhere: **row receives**. `links[i, j]` is true when server i receives
from server j. Say `senders(i)` and `receivers(j)`, never in and out.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

BoolMatrix = NDArray[np.bool_]
FloatMatrix = NDArray[np.float64]
Scalar = TypeVar("Scalar", bound=np.generic)


@dataclass(frozen=True, eq=False)
class Topology:
    """Who receives from whom in one round; the matrix is read-only and has an empty diagonal."""

    links: BoolMatrix  # [N, N]

    def __post_init__(self) -> None:
        links = np.array(self.links, dtype=bool)
        if links.ndim != 2 or links.shape[0] != links.shape[1]:
            raise ValueError(f"a topology is a square matrix, got shape {links.shape}")
        if links.diagonal().any():
            raise ValueError(f"server {int(links.diagonal().argmax())} has a link to itself")
        links.setflags(write=False)
        object.__setattr__(self, "links", links)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Topology) and np.array_equal(self.links, other.links)

    def __hash__(self) -> int:
        return hash(self.links.tobytes())

    @property
    def num_servers(self) -> int:
        """N."""
        return int(self.links.shape[0])

    @property
    def num_links(self) -> int:
        """How many models travel in this round."""
        return int(self.links.sum())

    def senders(self, receiver: int) -> tuple[int, ...]:
        """Whose models `receiver` gets, in ascending order."""
        return tuple(np.flatnonzero(self.links[receiver]).tolist())

    def receivers(self, sender: int) -> tuple[int, ...]:
        """Who gets the model of `sender`, in ascending order."""
        return tuple(np.flatnonzero(self.links[:, sender]).tolist())

    @classmethod
    def from_pairs(cls, num_servers: int, pairs: list[tuple[int, int]]) -> Topology:
        """The topology with a link for each pair (receiver, sender)."""
        links = np.zeros((num_servers, num_servers), dtype=bool)
        for receiver, sender in pairs:
            links[receiver, sender] = True
        return cls(links)


def all_links(num_servers: int) -> BoolMatrix:
    """Every link that can exist: all pairs but a server with itself.  # [N, N]."""
    return _all_links(num_servers).copy()


@lru_cache(maxsize=8)
def _all_links(num_servers: int) -> BoolMatrix:
    mask: BoolMatrix = ~np.eye(num_servers, dtype=bool)
    return mask


def off_diagonal(matrix: NDArray[Scalar]) -> NDArray[Scalar]:  # [N, N] -> [N − 1, N]
    """The entries off the diagonal in their order, as a view; of a matrix that is contiguous.

    Behind the first entry a square matrix is N − 1 times N others and one of the diagonal.
    """
    size = len(matrix)
    return matrix.reshape(-1)[1:].reshape(max(size - 1, 0), size + 1)[:, :size]


def are_all_links(possible: BoolMatrix) -> bool:
    """Whether a mask with an empty diagonal names every other link."""
    return int(np.count_nonzero(possible)) == len(possible) * (len(possible) - 1)


def is_strongly_connected(topology: Topology) -> bool:
    """Whether a model can reach every server from every other along the links of this round."""
    return _reaches_all(topology.links) and _reaches_all(topology.links.T)


def _reaches_all(links: BoolMatrix) -> bool:
    reached = np.zeros(len(links), dtype=bool)
    frontier = reached.copy()
    frontier[:1] = True
    while frontier.any():
        reached |= frontier
        frontier = links[frontier].any(axis=0) & ~reached
    return bool(reached.all())
