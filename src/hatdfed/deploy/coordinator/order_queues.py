"""Orders on their way to the edges that watch for them."""

from __future__ import annotations

import asyncio

from hatdfed.deploy.protocol import hatdfed_pb2 as pb

END = pb.Order(epoch=-1)  # of no start of any coordinator: the last one of a queue
_MOST_ORDERS = 1000  # that wait for one edge; one that reads none of them is not there


class OrderQueues:
    """One queue for every edge that watches; an edge has one at a time."""

    def __init__(self) -> None:
        self._queues: dict[int, asyncio.Queue[pb.Order]] = {}

    def open(self, index: int) -> asyncio.Queue[pb.Order]:
        """A fresh queue; an older one of the same edge ends."""
        self._end(index)
        self._queues[index] = asyncio.Queue()
        return self._queues[index]

    def close(self, index: int, orders: asyncio.Queue[pb.Order]) -> bool:
        """Forget a queue; whether it was still the edge's own, or it has dialled again since."""
        if self._queues.get(index) is not orders:
            return False
        del self._queues[index]
        return True

    def put(self, index: int, order: pb.Order) -> bool:
        """An order for an edge, if it watches; False if it reads none, and so watches no more."""
        if (queue := self._queues.get(index)) is None:
            return True
        queue.put_nowait(order)
        if queue.qsize() <= _MOST_ORDERS:
            return True
        self._end(index)
        return False

    @property
    def watching(self) -> list[int]:
        """Who watches."""
        return list(self._queues)

    def _end(self, index: int) -> None:
        if (old := self._queues.pop(index, None)) is not None:
            old.put_nowait(END)
