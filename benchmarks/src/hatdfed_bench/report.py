"""Everything that `hatdfed bench` measures, as one value."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hatdfed.runs.process_memory import keep_freed_memory
from hatdfed.runs.records.folder import environment
from hatdfed_bench.coordinator_cost import coordinator_cost
from hatdfed_bench.machine import gemm_gflops
from hatdfed_bench.measure import Result, measure
from hatdfed_bench.workload import Workload

COORDINATOR_SIZES = (5, 50, 200, 1000, 2000)
MAILBOX_LIMIT, LOOP_LIMIT = 50, 50  # servers; beyond it they only take time


@dataclass(frozen=True)
class Report:
    """The machine, its yardstick, the fleets and the coordinator."""

    machine: dict[str, Any]
    gemm_gflops: float
    workloads: list[Result]
    coordinator: list[dict[str, float]]

    def as_json(self) -> dict[str, Any]:
        """One object."""
        return {
            "machine": self.machine,
            "gemm_gflops": self.gemm_gflops,
            "workloads": [result.as_json() for result in self.workloads],
            "coordinator": self.coordinator,
        }


def make_report(
    workload: Workload,
    device_name: str,
    sizes: Sequence[int],
    *,
    fleets: tuple[str, ...],
    runs: int,
    turns: int,
    tell: Callable[[str], None],
) -> Report:
    """Measure; `tell` hears what is being done."""
    keep_freed_memory()
    device = torch.device(device_name)
    torch.set_float32_matmul_precision("high")  # TF32 on a GPU, for the loop as well
    results: list[Result] = []
    for size in sizes:
        timed = tuple(name for name in fleets if size <= _limit(name, device_name))
        tell(f"{workload.name}, {size} servers: {', '.join(timed)}")
        results += measure(workload, size, device, fleets=timed, runs=runs, turns=turns)
    tell("the coordinator alone")
    costs = [{"servers": size, "milliseconds": coordinator_cost(size)} for size in COORDINATOR_SIZES]
    return Report(_machine(device), gemm_gflops(device), results, costs)


def _limit(fleet: str, device: str) -> int:
    """The largest fleet that is worth the wait; mailboxes are not timed on a GPU, where they do not run."""
    limits = {"loop": LOOP_LIMIT, "mailbox": MAILBOX_LIMIT if device == "cpu" else 0}
    return limits.get(fleet, 1 << 30)


def _machine(device: torch.device) -> dict[str, Any]:
    surroundings = environment()
    processor = f"{surroundings['processor']}, {torch.get_num_threads()} threads"
    name = torch.cuda.get_device_name() if device.type == "cuda" else processor
    return {"name": name, "system": platform.system(), **surroundings}
