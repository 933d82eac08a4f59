"""What every partitioner must satisfy."""

from __future__ import annotations

import numpy as np

from hatdfed.core.task import CLASSIFICATION, TaskKind
from hatdfed.data.partition import Indices
from hatdfed.data.partitioners import Partitioner, TrainingSamples
from hatdfed.randomness import stream

_LABELS, _GROUPS, _SAMPLES = 6, 40, 900


class PartitionerLaws:
    """Tests that every partitioner must pass; it is shown 900 samples of 6 classes from 40 places."""

    sizes = (2, 5, 12)  # numbers of servers that are tried

    def partitioner(self) -> Partitioner:
        """Return the partitioner under test."""
        raise NotImplementedError

    def _samples(self, num_servers: int, amounts: list[int] | None = None) -> TrainingSamples:
        rng = stream(0, "partitioner-laws")
        labels, groups = rng.integers(_LABELS, size=_SAMPLES), rng.integers(_GROUPS, size=_SAMPLES)
        task = TaskKind(CLASSIFICATION, _LABELS)
        return TrainingSamples(labels, groups, task, amounts or [_SAMPLES // num_servers] * num_servers)

    def _split(self, num_servers: int, seed: int = 0) -> list[Indices]:
        return self.partitioner().split(self._samples(num_servers), seed)

    def test_every_server_owns_samples_of_the_pool_each_once(self) -> None:
        for size in self.sizes:
            parts = self._split(size)
            assert len(parts) == size
            for part in parts:
                assert part.dtype == np.int64
                assert len(part) > 0
                assert len(np.unique(part)) == len(part)
                assert part.min() >= 0
                assert part.max() < _SAMPLES

    def test_no_sample_has_two_owners_where_that_is_promised(self) -> None:
        if getattr(self.partitioner(), "is_disjoint", False):
            for size in self.sizes:
                owned = np.concatenate(self._split(size))
                assert len(np.unique(owned)) == len(owned)

    def test_servers_own_what_they_are_to_where_that_is_promised(self) -> None:
        if getattr(self.partitioner(), "takes_amounts", False):
            amounts = [20, 40, 80]
            parts = self.partitioner().split(self._samples(3, amounts), 0)
            assert [len(part) for part in parts] == amounts

    def test_a_seed_gives_the_same_split_each_time(self) -> None:
        for size in self.sizes:
            for one, two in zip(self._split(size, 3), self._split(size, 3), strict=True):
                np.testing.assert_array_equal(one, two)

    def test_the_samples_are_left_as_they_are(self) -> None:
        samples = self._samples(5)
        before = samples.y.copy()
        self.partitioner().split(samples, 0)
        np.testing.assert_array_equal(samples.y, before)
