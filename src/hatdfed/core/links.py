"""Directed links between servers: those that are drawn in a round, and those that are considered at all.

Orientation, stated once and used everywhere: **row receives**. `links[i, j]` is true when server i receives
from server j. Say `senders(i)` and `receivers(j)`, never in and out.

`Topology` is the links of one round. `LinkTable` is the list of links that a round may draw from; whatever is known
about each of them (prices, probabilities, utilities, weights) is a *column*, an array with one value for each link of
the table.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

BoolMatrix = NDArray[np.bool_]  # [N, N], row receives
FloatMatrix = NDArray[np.float64]  # [N, N], row receives
BoolColumn = NDArray[np.bool_]  # [E] one value for each link of a table
FloatColumn = NDArray[np.float64]  # [E]
Indices = NDArray[np.int64]
Pairs = NDArray[np.int64]  # [L, 2] receiver and sender
Scalar = TypeVar("Scalar", bound=np.generic)


class LinkTable(ABC):
    """The links that are considered, in a fixed order: by receiver, then by sender.

    Every server considers `degree` senders: all others (`all_of`), or its candidates (`of_candidates`). So a column [E]
    is a table with one row for each receiver, which `by_receiver` shows without a copy. Whoever thinks in matrices
    makes one with `to_dense` and comes back with `from_dense`.
    """

    def __init__(self, num_servers: int, degree: int) -> None:
        self.num_servers = num_servers  # N
        self.degree = degree  # d: senders that each server considers

    @staticmethod
    def all_of(num_servers: int) -> LinkTable:
        """Every link between so many servers."""
        return _all_of(num_servers)

    @staticmethod
    def of_candidates(candidates: Indices) -> LinkTable:
        """The links to each server from its candidates, [N, d], ascending in each row."""
        return _CandidateLinks(candidates)

    def __len__(self) -> int:
        """E."""
        return self.num_servers * self.degree

    @property
    def has_all(self) -> bool:
        """Whether every server considers every other."""
        return self.degree == self.num_servers - 1

    @property
    @abstractmethod
    def senders(self) -> Indices:
        """[N, d] whom each server considers, ascending in each row."""

    @property
    def sender(self) -> Indices:
        """[E] the sender of each link."""
        return self.senders.reshape(-1)

    @cached_property
    def receiver(self) -> Indices:
        """[E] the receiver of each link."""
        return self.at_receivers(np.arange(self.num_servers))

    def by_receiver(self, column: NDArray[Scalar]) -> NDArray[Scalar]:  # [E] -> [N, d]
        """A column as a table with one row for each receiver; a view."""
        return column.reshape(self.num_servers, self.degree)

    def at_receivers(self, values: NDArray[Scalar]) -> NDArray[Scalar]:  # [N] -> [E]
        """A number of every server, at the links along which it receives."""
        return np.broadcast_to(values[:, None], (self.num_servers, self.degree)).flatten()

    @abstractmethod
    def at_senders(self, values: NDArray[Scalar]) -> NDArray[Scalar]:  # [N] -> [E]
        """A number of every server, at the links along which it sends."""

    @abstractmethod
    def pairs(self, places: NDArray[np.integer]) -> Pairs:  # [L] -> [L, 2]
        """Receiver and sender of the links at these places."""

    @abstractmethod
    def places(self, receiver: Indices, sender: Indices) -> Indices:  # [L], [L] -> [L]
        """Where these links stand in the table; all of them must."""

    def to_dense(self, column: NDArray[Scalar], fill: float = 0) -> NDArray[Scalar]:  # [E] -> [N, N]
        """A column as a matrix, row receives; `fill` on the diagonal and where a link is not considered."""
        matrix = np.full((self.num_servers, self.num_servers), fill, dtype=column.dtype)
        self._write(column, matrix)
        return matrix

    def from_dense(self, matrix: NDArray[Scalar]) -> NDArray[Scalar]:  # [N, N] -> [E]
        """The column of a matrix; a mask must not name the diagonal."""
        size = self.num_servers
        if matrix.shape != (size, size):
            raise ValueError(f"{size} servers have a matrix of links of shape {(size, size)}, not {matrix.shape}")
        if matrix.dtype == bool and matrix.diagonal().any():
            raise ValueError(f"server {int(matrix.diagonal().argmax())} has a link to itself")
        return self._read(matrix)

    @abstractmethod
    def _write(self, column: NDArray[Scalar], matrix: NDArray[Scalar]) -> None:
        """Put a column into a matrix."""

    @abstractmethod
    def _read(self, matrix: NDArray[Scalar]) -> NDArray[Scalar]:
        """Take a column out of a matrix."""

    def grow(self, column: NDArray[Scalar], fill: float = 0) -> NDArray[Scalar]:  # -> [E]
        """The column of all links between fewer servers, after others joined; their links get `fill`."""
        before = LinkTable.all_of(num_servers_of(len(column)))
        matrix = np.full((self.num_servers, self.num_servers), fill, dtype=column.dtype)
        matrix[: before.num_servers, : before.num_servers] = before.to_dense(column)
        return self._read(matrix)


def num_servers_of(num_links: int) -> int:
    """How many servers have so many links between them, N·(N − 1)."""
    return (1 + math.isqrt(1 + 4 * num_links)) // 2


class _AllLinks(LinkTable):
    """All links: a matrix without its diagonal, so that no list of them is needed."""

    def __init__(self, num_servers: int) -> None:
        super().__init__(num_servers, max(num_servers - 1, 0))

    @cached_property
    def senders(self) -> Indices:
        return self.by_receiver(self.at_senders(np.arange(self.num_servers)))

    def at_senders(self, values: NDArray[Scalar]) -> NDArray[Scalar]:
        if self.num_servers < 2:
            return values[:0]
        # In rows of N, as `off_diagonal` has them, each row is the one before it moved on by one sender.
        turning = sliding_window_view(np.concatenate([values, values]), self.num_servers)
        return turning[1 : self.num_servers].flatten()

    def pairs(self, places: NDArray[np.integer]) -> Pairs:
        receiver, sender = np.divmod(places, max(self.degree, 1))
        return np.stack([receiver, sender + (sender >= receiver)], axis=1)

    def places(self, receiver: Indices, sender: Indices) -> Indices:
        places: Indices = receiver * self.degree + sender - (sender > receiver)
        return places

    def _write(self, column: NDArray[Scalar], matrix: NDArray[Scalar]) -> None:
        inside = off_diagonal(matrix)
        inside[:] = column.reshape(inside.shape)

    def _read(self, matrix: NDArray[Scalar]) -> NDArray[Scalar]:
        return off_diagonal(np.ascontiguousarray(matrix)).reshape(-1)


@lru_cache(maxsize=8)
def _all_of(num_servers: int) -> LinkTable:
    return _AllLinks(num_servers)


class _CandidateLinks(LinkTable):
    """A few links to each server: nothing here is as large as a matrix."""

    def __init__(self, candidates: Indices) -> None:
        super().__init__(*candidates.shape)
        self._candidates = candidates

    @property
    def senders(self) -> Indices:
        return self._candidates

    def at_senders(self, values: NDArray[Scalar]) -> NDArray[Scalar]:
        return values[self.sender]

    def pairs(self, places: NDArray[np.integer]) -> Pairs:
        return np.stack([places // self.degree, self.sender[places]], axis=1)

    def places(self, receiver: Indices, sender: Indices) -> Indices:
        wanted = receiver * self.num_servers + sender
        places: Indices = np.searchsorted(self._keys, wanted)
        if (self._keys.take(places, mode="clip") != wanted).any():
            raise ValueError("a link is not among those that are considered")
        return places

    @cached_property
    def _keys(self) -> Indices:
        """[E] receiver · N + sender, ascending."""
        keys: Indices = self.receiver * self.num_servers + self.sender
        return keys

    def _write(self, column: NDArray[Scalar], matrix: NDArray[Scalar]) -> None:
        np.put_along_axis(matrix, self._candidates, self.by_receiver(column), axis=1)

    def _read(self, matrix: NDArray[Scalar]) -> NDArray[Scalar]:
        return np.take_along_axis(matrix, self._candidates, axis=1).reshape(-1)


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
