"""Worker processes that play batches of runs, and count the rounds that they have played."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

LOOK_SECONDS = 0.5  # between two looks at how far the workers are
GPU_MEMORY_SHARE = 0.95  # of all processes together; the rest is what CUDA itself takes in each

_shared_counter: Any = None  # of a worker process: rounds that all workers have played


class Workers:
    """A pool of processes; whoever starts a task gets it back with its result and its seconds."""

    def __init__(self, processes: int, device: str) -> None:
        # Spawned, not forked: neither torch's threads nor CUDA survive a fork.
        context = multiprocessing.get_context("spawn")
        self._counter = context.Value("q", 0)
        self._pool = ProcessPoolExecutor(
            processes, mp_context=context, initializer=_prepare, initargs=(processes, device, self._counter)
        )
        self._tasks: dict[Future[Any], tuple[Any, float]] = {}

    @property
    def busy(self) -> int:
        """Tasks that are not finished."""
        return len(self._tasks)

    @property
    def count(self) -> int:
        """What the tasks have counted together."""
        return int(self._counter.get_obj().value)  # without the lock, which a killed process may hold

    def start(self, task: Any, work: Callable[..., Any], *arguments: Any) -> None:
        """Do `work(one_more, *arguments)` in a process; `one_more()` counts there."""
        self._tasks[self._pool.submit(_counted, work, *arguments)] = (task, time.monotonic())

    def finished(self) -> Iterator[tuple[Any, Any, float]]:
        """Tasks that have ended since the last look, after waiting a moment for one; those that failed come last."""
        ended, _ = wait(self._tasks, timeout=LOOK_SECONDS, return_when=FIRST_COMPLETED)
        for future in sorted(ended, key=lambda future: future.exception() is not None):
            task, since = self._tasks.pop(future)
            yield task, future.result(), time.monotonic() - since

    def stop(self) -> None:
        """End all processes now, whatever they are doing."""
        for worker in list((self._pool._processes or {}).values()):
            worker.terminate()
        self._tasks.clear()

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.stop()
        self._pool.shutdown(wait=False, cancel_futures=True)


def multi_process_service() -> bool:
    """Whether NVIDIA's multi-process service runs here: with it processes share a GPU instead of taking turns."""
    return (Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")) / "control").exists()  # noqa: S108


def _prepare(processes: int, device: str, counter: Any) -> None:
    global _shared_counter
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // processes))
    if device == "cuda":
        torch.cuda.set_per_process_memory_fraction(GPU_MEMORY_SHARE / processes)
    _shared_counter = counter
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A worker whose parent was killed would sleep for ever, with all its memory."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)


def _counted(work: Callable[..., Any], *arguments: Any) -> Any:
    def one_more() -> None:
        with _shared_counter.get_lock():
            _shared_counter.value += 1

    return work(one_more, *arguments)
