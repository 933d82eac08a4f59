"""A machine that does only a share of a round's work, so that a slow server keeps pace with fast ones."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hatdfed.errors import ConfigError
from hatdfed.learning.work import Batch, DataSource, Work


@dataclass(frozen=True, eq=False)
class SlowMachine:
    """Any source of work, of whose passes the first `work_share` is done, and at least one batch if there is one."""

    source: DataSource
    work_share: float

    def __post_init__(self) -> None:
        if not 0 < self.work_share <= 1:
            raise ConfigError(
                f"work_share is {self.work_share}, but must lie above 0 and not above 1; 1 is all of the work."
            )

    @property
    def validation(self) -> Batch:
        """That of the source."""
        return self.source.validation

    def work(self, t: int) -> Work:
        """The source's work, cut short; `num_samples` are the images that are left in it."""
        work = self.source.work(t)
        batches = work.batches[: share_of(len(work.batches), self.work_share)]
        # A pass sees every image once, so what is cut inside the first pass is not seen at all.
        seen = min(work.num_samples, sum(len(batch.y) for batch in batches))
        return work._replace(batches=batches, num_samples=seen)


def share_of(num_batches: int, work_share: float) -> int:
    """So many of the batches, rounded up, and at least one if there is one.

    >>> [share_of(n, 0.3) for n in (0, 1, 4, 10)]
    [0, 1, 2, 3]
    """
    wanted = math.ceil(num_batches * work_share - 1e-9)  # a product that should be whole may come out a little above
    return max(wanted, min(num_batches, 1))
