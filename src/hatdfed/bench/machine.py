"""The yardsticks: what the machine's matrix multiplication reaches, and how much memory a piece of work took."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch

SIZES = {"cpu": (1024, 2048, 4096), "cuda": (4096, 8192)}


def gemm_gflops(device: torch.device) -> float:
    """The best rate of a square float32 product over a few sizes, in GFLOP/s; with TF32 where that is allowed."""
    best = 0.0
    for size in SIZES[device.type]:
        a, b = (torch.randn(size, size, device=device) for _ in range(2))
        out = torch.empty_like(a)
        seconds = min(timed(lambda: torch.mm(a, b, out=out), device) for _ in range(4))  # noqa: B023 (called at once)
        best = max(best, 2 * size**3 / seconds / 1e9)
    return best


def timed(work: Callable[[], object], device: torch.device) -> float:
    """Seconds until the work is really done."""
    synchronise(device)
    start = time.perf_counter()
    work()
    synchronise(device)
    return time.perf_counter() - start


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
