"""Networks that the field uses: the stacked fleet in several ways, against a tuned loop in the same process.

    python benchmarks/networks.py --device cpu --servers 4 --out benchmarks/results/networks-cpu.json
    python benchmarks/networks.py --device cuda --servers 64 --out benchmarks/results/networks-h200.json

`stacked` is what a run would choose, `mailbox` plays one server after another on a CPU. `looped` and `lifted` are the
stacked fleet, made to compute in that way; words after a plus sign say how it is lifted, such as `lifted+each+graphs`:

    unfolded, each   convolutions as products of matrices, or one call for each server, in place of one in groups
    channels_last    one call for each server, with images and kernels in that order of memory
    graphs           steps and evaluations as CUDA graphs
    compiled         by torch.compile
    tuned            cuDNN times its algorithms and takes the fastest

Without --ways a GPU gets `stacked`, `lifted` and `lifted+graphs`, and all forms of convolutions for networks that have
some. `stacked` is always the first. Of the time in all, every network has an equal share of what those before it have
left.

Every way is written to the file as soon as it is measured, with the errors of what failed. The same command once more
measures what failed or is not in the file.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

from hatdfed.fleets.stacked.convolutions import has_other_forms
from hatdfed.runs.process_memory import keep_freed_memory
from hatdfed.runs.records.folder import environment
from hatdfed_bench.measure import Result, measure_ways
from hatdfed_bench.workload import FIELD, Workload

WAYS = {"cpu": "stacked,mailbox,lifted,looped", "cuda": "stacked,lifted,lifted+graphs"}
OF_CONVOLUTIONS = "lifted+each+graphs,lifted+channels_last+graphs,lifted+unfolded+graphs,lifted+tuned"  # on a GPU


def main() -> None:
    """Measure what the file does not have yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], required=True)
    parser.add_argument("--servers", type=int, default=64)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--networks", default=",".join(workload.name for workload in FIELD))
    parser.add_argument("--ways", help=f"{WAYS['cpu']} on a CPU")
    parser.add_argument("--limit-seconds", type=float, default=1e6, help="for each network")
    parser.add_argument("--total-seconds", type=float, default=1e6, help="for all networks together")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    end = time.monotonic() + asked.total_seconds
    keep_freed_memory()
    torch.set_float32_matmul_precision("high")  # TF32 on a GPU, for the loop as well
    device = torch.device(asked.device)
    file = _File(asked.out, device)
    todo = [(workload, _ways(workload, asked.ways, device)) for workload in FIELD]
    todo = [(workload, ways) for workload, ways in todo if workload.name in asked.networks.split(",")]
    for place, (workload, ways) in enumerate(todo):
        measured = file.measured(workload, asked.servers)
        missing = [way for way in ways if way not in measured]
        if missing or "loop" not in measured:
            share = (end - time.monotonic()) / (len(todo) - place)
            _measure(file, workload, asked.servers, missing, asked.turns, min(asked.limit_seconds, share))


def _ways(workload: Workload, asked: str | None, device: torch.device) -> list[str]:
    """Those that are asked for, or matter for this network; what a run would choose comes first."""
    words = asked or WAYS[device.type]
    if asked is None and device.type == "cuda" and has_other_forms(workload.make_module()):
        words = f"{words},{OF_CONVOLUTIONS}"
    return sorted(words.split(","), key=lambda way: way != "stacked")


class _File:
    """What has been measured; written after every way."""

    def __init__(self, path: Path, device: torch.device) -> None:
        self._path, self.device = path, device
        self._known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else _describe(device)

    def measured(self, workload: Workload, servers: int) -> set[str]:
        """The ways of this network that have figures."""
        rows = [row for row in self._known["networks"] if _is_of(row, workload, servers)]
        return {row["fleet"] for row in rows if "error" not in row}

    def put(self, workload: Workload, row: dict[str, Any]) -> None:
        """Replace the row of the same way; figures are not replaced by those of a later call, nor by an error."""
        if row["fleet"] in self.measured(workload, row["servers"]):
            return
        rows = self._known["networks"]
        same = [old for old in rows if _is_of(old, workload, row["servers"]) and old["fleet"] == row["fleet"]]
        self._known["networks"] = [*(old for old in rows if old not in same), row]
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps(self._known, indent=2) + "\n", encoding="utf-8")


def _is_of(row: dict[str, Any], workload: Workload, servers: int) -> bool:
    return (row["workload"], row["servers"]) == (workload.name, servers)


def _measure(file: _File, workload: Workload, servers: int, ways: list[str], turns: int, limit: float) -> None:
    """A row for each way and for the loop; one that failed has its error in place of figures."""
    started = time.monotonic()
    names = iter([*ways, "loop"])
    try:
        for result in measure_ways(workload, servers, file.device, ways, turns=turns, seconds=limit):
            _put(file, workload, _row(workload, servers, next(names), result))
    except Exception as error:  # noqa: BLE001 (the other networks are measured all the same)
        for name in names:
            _put(file, workload, _row(workload, servers, name, error))
    print(f"{workload.name:22} {time.monotonic() - started:.0f} s in all", flush=True)


def _put(file: _File, workload: Workload, row: dict[str, Any]) -> None:
    _print(row)
    file.put(workload, row)


def _row(workload: Workload, servers: int, fleet: str, result: Result | Exception) -> dict[str, Any]:
    if isinstance(result, Result):
        return result.as_json()
    message = (str(result).strip().splitlines() or [""])[0][:300]
    return {
        "workload": workload.name,
        "servers": servers,
        "fleet": fleet,
        "error": f"{type(result).__name__}: {message}",
    }


def _print(row: dict[str, Any]) -> None:
    if "error" in row:
        print(f"{row['workload']:22} {row['fleet']:24} {row['error']}", flush=True)
        return
    off = "" if row["deviation"] is None else f"off by {row['deviation']:.0e}"
    figures = (
        f"{row['seconds_per_round']:8.4f} s  {row['speedup_over_loop']:6.2f} × loop  {row['peak_memory_mb']:8.0f} MB"
    )
    words = (row["workload"].ljust(22), row["fleet"].ljust(24), (row["kernels"] or "").ljust(7), figures, off)
    print(*words, row["note"] or "", row["because"] or "", flush=True)


def _describe(device: torch.device) -> dict[str, Any]:
    surroundings = environment()
    processor = f"{surroundings['processor']}, {torch.get_num_threads()} threads"
    name = torch.cuda.get_device_name() if device.type == "cuda" else processor
    return {"machine": {"name": name, **surroundings}, "networks": []}


if __name__ == "__main__":
    main()
