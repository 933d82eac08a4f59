"""The directed links of one round.

Orientation, stated once and used everywhere: **row receives**. `links[i, j]` is true when server i receives
from server j. Say `senders(i)` and `receivers(j)`, never in and out.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

BoolMatrix = NDArray[np.bool_]
FloatMatrix = NDArray[np.float64]
Indices = NDArray[np.int64]
Pairs = NDArray[np.int64]  # [L, 2] receiver and sender
Scalar = TypeVar("Scalar", bound=np.generic)


class Topology:
    """Who receives from whom in one round; read-only, and nobody has a link to itself.

    It is made from a matrix or from pairs and has both; whichever it was not made from is made when it is asked for, so
    that thousands of servers with few links need no matrix.
    """

    def __init__(self, links: BoolMatrix) -> None:
        links = np.array(links, dtype=bool)
        if links.ndim != 2 or links.shape[0] != links.shape[1]:
            raise ValueError(f"a topology is a square matrix, got shape {links.shape}")
        if links.diagonal().any():
            itself = int(links.diagonal().argmax())
            raise ValueError(f"server {itself} has a link to itself in a {_size(len(links))}")
        links.setflags(write=False)
        self.num_servers = len(links)  # N
        self.links = links  # [N, N]

    @classmethod
    def from_pairs(cls, num_servers: int, pairs: Sequence[tuple[int, int]] | Pairs) -> Topology:
        """The topology with a link for each pair (receiver, sender)."""
        table = np.asarray(pairs, dtype=np.int64).reshape(-1, 2)
        if table.size and not 0 <= table.min() <= table.max() < num_servers:
            raise ValueError(f"servers are numbered from 0 to {num_servers - 1}")
        if (table[:, 0] == table[:, 1]).any():
            raise ValueError("a server has a link to itself")
        flat = table[:, 0] * num_servers + table[:, 1]
        if (np.diff(flat) <= 0).any():
            flat = np.unique(flat)
        topology = cls.__new__(cls)
        topology.num_servers = num_servers
        topology.pairs = np.stack(np.divmod(flat, num_servers), axis=1)
        topology.pairs.setflags(write=False)
        return topology

    @cached_property
    def links(self) -> BoolMatrix:
        """[N, N], row receives."""
        links = np.zeros((self.num_servers, self.num_servers), dtype=bool)
        links[self.pairs[:, 0], self.pairs[:, 1]] = True
        links.setflags(write=False)
        return links

    @cached_property
    def pairs(self) -> Pairs:
        """[L, 2] receiver and sender of every link; receivers in order, then senders."""
        pairs = np.argwhere(self.links)
        pairs.setflags(write=False)
        return pairs

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Topology)
            and self.num_servers == other.num_servers
            and np.array_equal(self.pairs, other.pairs)
        )

    def __hash__(self) -> int:
        return hash((self.num_servers, self.pairs.tobytes()))

    @property
    def num_links(self) -> int:
        """How many models travel in this round."""
        return len(self.pairs)

    def senders(self, receiver: int) -> tuple[int, ...]:
        """Whose models `receiver` gets, in ascending order."""
        return self._ends[0].of(receiver)

    def receivers(self, sender: int) -> tuple[int, ...]:
        """Who gets the model of `sender`, in ascending order."""
        return self._ends[1].of(sender)

    @cached_property
    def _ends(self) -> tuple[_Index, _Index]:
        """The other ends of every server's links: as a receiver, and as a sender."""
        receiver, sender = self.pairs.T
        order = np.argsort(sender, kind="stable")
        return _Index.of_sorted(receiver, sender, self.num_servers), _Index.of_sorted(
            sender[order], receiver[order], self.num_servers
        )


class _Index(NamedTuple):
    """Lists of servers, one after another, and where each begins."""

    first: list[int]  # [N + 1]
    others: list[int]  # [L]

    @classmethod
    def of_sorted(cls, server: Indices, other: Indices, num_servers: int) -> _Index:
        return cls(np.searchsorted(server, np.arange(num_servers + 1)).tolist(), other.tolist())

    def of(self, server: int) -> tuple[int, ...]:
        if server >= len(self.first) - 1:
            raise ValueError(f"there is no server {server} in a {_size(len(self.first) - 1)}")
        return tuple(self.others[self.first[server] : self.first[server + 1]])


def _size(num_servers: int) -> str:
    """A policy that draws for too few or too many servers finds its mistake by this."""
    return f"{num_servers}x{num_servers} draw, which is one for {num_servers} servers"


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
    """Whether a mask is a square with an empty diagonal and names every other link."""
    height, width = possible.shape
    return bool(height == width and np.count_nonzero(possible) == height * (height - 1))


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
