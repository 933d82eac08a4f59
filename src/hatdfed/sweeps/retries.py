"""What is tried again when batches of runs die, and when a run is given up. Knows neither processes nor machines."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Generic, TypeVar

T = TypeVar("T")

RETRIES = 2  # of a run that dies, unless somebody says otherwise


class Attempts(Generic[T]):
    """Batches still to be played, in order; what died goes to the end of the line.

    A batch that dies is tried again as it is, and at last run by run: one poisonous run must not take its neighbours
    with it. A run is given up when it has died alone, and `retries` times before.

    >>> line = Attempts([{0: "a", 1: "b"}], retries=1)
    >>> batch = line.take()
    >>> line.died(batch)                 # now one by one
    []
    >>> one, other = line.take(), line.take()
    >>> line.died(one), line.take()
    ([0], None)
    """

    def __init__(self, batches: Iterable[Mapping[int, T]], retries: int) -> None:
        self._retries = retries
        self._waiting: deque[dict[int, T]] = deque(dict(batch) for batch in batches)
        self._deaths: dict[int, int] = {}  # of each run so far, alone or not

    def __len__(self) -> int:
        return len(self._waiting)

    def take(self, allows: Callable[[Mapping[int, T]], bool] = lambda batch: True) -> dict[int, T] | None:
        """The first batch that may be played now; None when there is none (what is in play may come back)."""
        batch = next((batch for batch in self._waiting if allows(batch)), None)
        if batch is not None:
            self._waiting.remove(batch)
        return batch

    def died(self, batch: Mapping[int, T]) -> list[int]:
        """A batch did not end well: it is put back into the line, whole or in parts. Returns the runs to give up.

        Hand in what is left to play of it: runs that had ended before need not be tried again.
        """
        for index in batch:
            self._deaths[index] = self._deaths.get(index, 0) + 1
        deaths = max((self._deaths[index] for index in batch), default=0)
        if len(batch) == 1:
            if deaths > self._retries:
                return list(batch)
            self._waiting.append(dict(batch))
        elif batch and deaths < self._retries:
            self._waiting.append(dict(batch))
        else:
            self._waiting.extend({index: job} for index, job in batch.items())
        return []
