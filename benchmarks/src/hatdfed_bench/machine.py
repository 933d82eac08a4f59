"""The yardsticks: what the machine's matrix multiplication reaches, and how much memory a piece of work took."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

SIZE = {"cpu": 2048, "cuda": 8192}  # larger ones are no faster
SUSTAINED = 0.8  # seconds; a machine that is asked for more than a moment slows down, in a round as in a product


def gemm_gflops(device: torch.device) -> float:
    """The rate of square float32 products, one after another, in GFLOP/s; on a GPU with TF32 where that is allowed."""
    size = SIZE[device.type]
    a, b = (torch.randn(size, size, device=device) for _ in range(2))
    out = torch.empty_like(a)
    torch.mm(a, b, out=out)
    count, seconds = 0, 0.0
    while seconds < SUSTAINED:
        seconds += timed(lambda: torch.mm(a, b, out=out), device)
        count += 1
    return count * 2 * size**3 / seconds / 1e9


def timed(work: Callable[[], object], device: torch.device) -> float:
    """Seconds until the work is really done.

    Work on one thread is timed by the time that the process has had: other processes may use the machine meanwhile.
    """
    clock = time.process_time if device.type == "cpu" and torch.get_num_threads() == 1 else time.perf_counter
    synchronise(device)
    start = clock()
    work()
    synchronise(device)
    return clock() - start


def synchronise(device: torch.device) -> None:
    """Wait for a GPU."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def forget_peak_memory(device: torch.device) -> None:
    """Start counting anew."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        return
    with suppress(OSError):  # then the peak is that of the whole process
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory_mb(device: torch.device) -> float:
    """The most that was in use since `forget_peak_memory`."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated() / 1e6
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 / 1e6
    return float("nan")


class _Stopped(BaseException):
    """Not an `Exception`: what is timed may handle those itself."""


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raise `TimeoutError` in what takes longer; a call into a library is not interrupted before it returns."""

    def stop(*_: object) -> None:
        raise _Stopped

    before = signal.signal(signal.SIGALRM, stop)
    try:
        if seconds <= 0:
            stop()
        signal.setitimer(signal.ITIMER_REAL, seconds)
        yield
    except _Stopped:
        raise TimeoutError("there was no time left") from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
