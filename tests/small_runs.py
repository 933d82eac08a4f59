"""Runs that take no time, and somebody who is told about them."""

from hatdfed.setup.build.placement import Placement
from hatdfed.setup.layers import resolve
from hatdfed.sweeps.batches import PlayOptions

CPU = Placement("stacked", "cpu")


SMALL = {
    "dataset": "synthetic",
    "dataset_options": {"train": 300, "validation": 60, "test": 30},
    "network": "linear",
    "servers": 3,
    "rounds": 3,
    "validation_images": 50,
}


def config(**settings):
    return resolve({**SMALL, "method": "rnd", **settings})


class Told:
    """Every run is told about once."""

    def __init__(self):
        self.done, self.failed, self.rounds, self.notes = {}, {}, [], []

    def play(self, executor, jobs, placement=CPU, **how):
        on_rounds = lambda *progress: self.rounds.append(progress)  # noqa: E731
        how = PlayOptions(placement, on_rounds=on_rounds, on_note=self.notes.append, **how)
        executor.play(jobs, how, self._done, self._failed)
        assert not self.done.keys() & self.failed.keys()

    def _done(self, index, kept):
        assert index not in self.done
        self.done[index] = kept

    def _failed(self, index, reason):
        assert index not in self.failed
        self.failed[index] = reason
