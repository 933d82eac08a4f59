"""Worker processes that play batches of runs, and count the rounds that they have played.

Each has a line of its own to its parent and a counter that it alone writes, so that one that is killed takes nothing
with it but the task that it was at.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from hatdfed.errors import HatdfedError
from hatdfed.registry import Source, import_sources, list_sources

LOOK_SECONDS = 0.5  # between two looks at how far the workers are
GPU_MEMORY_SHARE = 0.95  # of all processes together; the rest is what CUDA itself takes in each
_LEAVE_SECONDS = 5.0  # that a process has for going by itself
_GUARD = 'In a script, put the work under `if __name__ == "__main__":`, or use one process (jobs=1, --jobs 1).'


class WorkerDiedError(HatdfedError):
    """A process ended in the middle of its task."""


class UnguardedScriptError(HatdfedError):
    """A worker process did not come to its work, most likely for a script that does not bear being read again."""


def refuse_in_unguarded_script() -> None:
    """A worker reads the script that started it; what stands there unguarded would start all over in each of them."""
    # Set only while that script is read, so processes of a user's own may call us; `parent_process` is not set by then.
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise UnguardedScriptError(
            f"A worker process reads the script that started it, and there it came to this call. {_GUARD}"
        )


@dataclass(frozen=True)
class Ended:
    """A task that is over: its result, or the error that it ended with."""

    task: Any
    seconds: float
    result: Any = None
    error: Exception | None = None


class Workers:
    """A pool of processes; whoever starts a task gets it back with its result and its seconds."""

    def __init__(self, processes: int, device: str, *own: Any) -> None:
        """Every process gets a copy of `own`, which it keeps and hands to all its work."""
        refuse_in_unguarded_script()
        self._limits = (processes, device, *own)
        self._all: list[_Worker] = []

    @property
    def busy(self) -> int:
        """Tasks in progress."""
        return sum(worker.is_busy for worker in self._all)

    @property
    def count(self) -> int:
        """The sum of the counters of the tasks in progress."""
        return sum(int(worker.counter.value) for worker in self._all if worker.is_busy)

    def start(self, task: Any, work: Callable[..., Any], *arguments: Any) -> None:
        """Do `work(one_more, *own, *arguments)` in a process; `one_more()` counts there."""
        idle = next((worker for worker in self._all if not worker.is_busy), None)
        if idle is None:
            idle = _Worker(*self._limits)
            self._all.append(idle)
        idle.start(task, work, arguments)

    def finished(self) -> list[Ended]:
        """Tasks that have ended since the last look, after waiting a moment for one; those that failed come last.

        Raises where a process did not come to its work: no other would.
        """
        busy = [worker for worker in self._all if worker.is_busy]
        ready = wait([end for worker in busy for end in (worker.line, worker.process.sentinel)], timeout=LOOK_SECONDS)
        ended = [worker.end() for worker in busy if worker.line in ready or worker.process.sentinel in ready]
        self._all = [worker for worker in self._all if worker.process.is_alive()]
        for error in (end.error for end in ended if isinstance(end.error, UnguardedScriptError)):
            raise error
        return sorted(ended, key=lambda end: end.error is not None)

    def stop(self) -> None:
        """End all processes now, whatever they are doing."""
        for worker in self._all:
            worker.process.terminate()
        self._leave()

    def _leave(self) -> None:
        for worker in self._all:
            worker.line.close()  # an idle one goes when nobody is at the other end
        for worker in self._all:
            worker.process.join(_LEAVE_SECONDS)
            if worker.process.is_alive():
                worker.process.kill()
        self._all = []

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and not self.busy:
            self._leave()
        else:
            self.stop()


class _Worker:
    """One process, as its parent sees it."""

    def __init__(self, processes: int, device: str, *own: Any) -> None:
        # Spawned, not forked: neither torch's threads nor CUDA survive a fork.
        context = multiprocessing.get_context("spawn")
        self.counter: Any = context.RawValue("q", 0)  # no lock: a killed process would hold it for ever
        self._is_up: Any = context.RawValue("b", 0)  # whether it has read the script that started it
        self.line, theirs = context.Pipe()
        if device == "cuda":  # batches of different sizes would leave memory in pieces that fit nothing
            os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
        given = (theirs, processes, device, self.counter, self._is_up, list_sources(), *own)
        self.process = context.Process(target=_serve, args=given, daemon=True)
        with _keep_ctrl_c_from_children():
            self.process.start()
        theirs.close()
        self.is_busy = False
        self._task: Any = None
        self._since = 0.0

    def start(self, task: Any, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self._task, self._since, self.is_busy = task, time.monotonic(), True
        self.counter.value = 0
        with suppress(BrokenPipeError):  # it died while it was idle; `end` will say so
            self.line.send((work, arguments))

    def end(self) -> Ended:
        """The task is over, or the process is."""
        self.is_busy = False
        seconds = time.monotonic() - self._since
        try:
            result, error = self.line.recv() if self.line.poll() else (None, self._death())
        except (EOFError, ConnectionResetError):
            result, error = None, self._death()
        except Exception as trouble:  # noqa: BLE001 (an answer that cannot be unpacked here, of whatever kind)
            result, error = None, trouble
        return Ended(self._task, seconds, result, error)

    def _death(self) -> HatdfedError:
        self.process.join(_LEAVE_SECONDS)
        code = self.process.exitcode
        if code is not None and code < 0:
            killer = signal.Signals(-code).name
            reason = f"A worker process was killed ({killer}), perhaps for want of memory."
        elif not self._is_up.value:
            reason = f"A worker process ended (exit code {code}) before its work began; what it said is above."
            return UnguardedScriptError(f"{reason} {_GUARD}")
        else:
            reason = f"A worker process ended by itself (exit code {code}) in the middle of its work."
        return WorkerDiedError(f"{reason} Try again with --jobs 1.")


@contextmanager
def _keep_ctrl_c_from_children() -> Iterator[None]:
    """Ctrl-C reaches the whole group, and a process that is importing torch would answer it with a traceback.

    What is blocked here is blocked in a process that is started, for ever; here it is delivered afterwards.
    """
    resource_tracker.ensure_running()  # or it would be started within, and unblock the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def multi_process_service() -> bool:
    """Whether NVIDIA's multi-process service runs here: with it processes share a GPU instead of taking turns."""
    return (Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")) / "control").exists()  # noqa: S108


def _serve(
    line: Connection[Any, Any],
    processes: int,
    device: str,
    counter: Any,
    is_up: Any,
    sources: Sequence[Source],
    *own: Any,
) -> None:
    """In the process: one task after another, until nobody is at the other end."""
    is_up.value = 1
    _prepare(processes, device)

    def one_more() -> None:
        counter.value += 1

    while True:
        try:
            work, arguments = line.recv()
        except EOFError:
            return
        answer: tuple[Any, Exception | None]
        try:
            import_sources(sources)  # things of the user's own; the script has been read already
            answer = (work(one_more, *own, *arguments), None)
        except Exception as error:  # noqa: BLE001 (it is the parent's to judge)
            error.add_note(f"In a worker process:\n{traceback.format_exc()}")
            answer = (None, error)
        line.send(answer)


def _prepare(processes: int, device: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // processes))
    if device == "cuda":
        torch.cuda.set_per_process_memory_fraction(GPU_MEMORY_SHARE / processes)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A worker whose parent was killed would sleep for ever, with all its memory."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
