"""What a machine of the cluster does with a batch of runs. Knows no Ray: plain values come in, plain values go out."""

from __future__ import annotations

import queue
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hatdfed.data.datasets import LoadedDatasets
from hatdfed.registry import Source, import_sources
from hatdfed.runs.play import Job
from hatdfed.runs.result import RunResult
from hatdfed.setup.build.placement import Placement
from hatdfed.setup.layers import validate
from hatdfed.sweeps.batches import PlayOptions, one_line, play_there
from hatdfed.sweeps.executors.run_archive import Parcel, lay_out, pack
from hatdfed.sweeps.workers import GPU_MEMORY_SHARE
from hatdfed.version import __version__

TELL_SECONDS = 0.5  # between two words about how many rounds have been played
_DATASETS = LoadedDatasets()  # Ray gives one process many tasks and no place to keep what they have in common


@dataclass(frozen=True)
class Order:
    """A batch, for a machine that knows nothing of this one's disk."""

    version: str  # of hatdfed, where the order comes from
    runs: Mapping[int, tuple[dict[str, Any], Parcel | None, int | None]]  # settings, how far it is, where it pauses
    fleet: str
    device: str
    data_dir: str | None  # for machines that have it there, too; others have HATDFED_DATA
    threads: int
    gpu_share: float
    sources: tuple[Source, ...] = ()  # modules that add things of the user's own, which that machine must have


Word = tuple[str, Any]  # ("rounds", how many), ("note", sentence), ("run", (number, parcel)), ("error", sentence)


def play_order(order: Order) -> Iterator[Word]:
    """Play the batch; tell how far it is, and hand over the folders of its runs at the end."""
    if order.version != __version__:
        yield "error", f"A machine of the cluster has hatdfed {__version__}, this one has {order.version}."
        return
    with tempfile.TemporaryDirectory(prefix="hatdfed-batch-", ignore_cleanup_errors=True) as scratch:
        player = _Player(order, Path(scratch))
        player.start()
        yield from player.words()


class _Player(threading.Thread):
    """Plays, while whoever started it listens."""

    def __init__(self, order: Order, scratch: Path) -> None:
        super().__init__(daemon=True)
        self._order = order
        self._scratch = scratch
        self._rounds = 0
        self._words: queue.SimpleQueue[Word | None] = queue.SimpleQueue()

    def words(self) -> Iterator[Word]:
        """Everything that it says, and now and then how many rounds it has played."""
        told = 0
        while True:
            try:
                word = self._words.get(timeout=TELL_SECONDS)
            except queue.Empty:
                if self._rounds > told:
                    told = self._rounds
                    yield "rounds", told
                continue
            if word is None:
                return
            yield word

    def run(self) -> None:
        """In its own thread."""
        try:
            for index, folder in self._play().items():
                self._words.put(("run", (index, pack(folder))))
        except Exception as error:  # noqa: BLE001 (it is told, and judged by whoever ordered)
            self._words.put(("error", one_line(error)))
        finally:
            self._words.put(None)

    def _play(self) -> dict[int, Path]:
        order = self._order
        import_sources(order.sources)
        torch.set_num_threads(order.threads)
        if order.device == "cuda":
            torch.cuda.set_per_process_memory_fraction(GPU_MEMORY_SHARE * min(1.0, order.gpu_share))
        folders = {index: self._scratch / str(index) for index in order.runs}
        jobs = []
        for index, (settings, half_played, until) in order.runs.items():
            if half_played is not None:
                lay_out(half_played, folders[index])
            jobs.append(Job(validate(settings), folders[index], resumed=half_played is not None, until=until))
        how = PlayOptions(
            Placement(order.fleet, order.device),
            order.data_dir if order.data_dir and Path(order.data_dir).is_dir() else None,
            on_note=lambda sentence: self._words.put(("note", sentence)),
            keep=_nothing,
        )
        play_there(self._one_more, _DATASETS, jobs, how)
        return folders

    def _one_more(self) -> None:
        self._rounds += 1


def _nothing(result: RunResult) -> None:
    """All there is to a run is in its folder."""
