"""Networks that the field uses: the stacked fleet in several ways, against a tuned loop in the same process.

    python benchmarks/networks.py --device cpu --servers 4 --out benchmarks/results/networks-cpu.json
    python benchmarks/networks.py --device cuda --servers 64 --out benchmarks/results/networks-h200.json

`stacked` is what a run would choose. `looped` and `lifted` are the same fleet, made to compute in that way; words after
a plus sign say how it is lifted, such as `lifted+each+graphs`:

    unfolded, each   convolutions as products of matrices, or one call for each server, in place of one in groups
    graphs           steps and evaluations as CUDA graphs
    compiled         by torch.compile
    plain            attention from products and softmax

Every network is written to the file as soon as it is measured, with the errors of what failed. The same command once
more measures what failed or is not in the file.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

from hatdfed.runs.malloc import keep_freed_memory
from hatdfed.runs.records.folder import environment
from hatdfed_bench.measure import Result, measure_ways
from hatdfed_bench.workload import FIELD, Workload

WAYS = "stacked,lifted,looped"


def main() -> None:
    """Measure what the file does not have yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], required=True)
    parser.add_argument("--servers", type=int, default=64)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--networks", default=",".join(workload.name for workload in FIELD))
    parser.add_argument("--ways", default=WAYS)
    parser.add_argument("--limit-seconds", type=float, default=1e6, help="for each network")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    keep_freed_memory()
    torch.set_float32_matmul_precision("high")  # TF32 on a GPU, for the loop as well
    device = torch.device(asked.device)
    known = json.loads(asked.out.read_text(encoding="utf-8")) if asked.out.exists() else _describe(device)
    for workload in FIELD:
        if workload.name not in asked.networks.split(","):
            continue
        here = [row for row in known["networks"] if _is_of(row, workload, asked.servers)]
        done = {row["fleet"] for row in here if "error" not in row}
        ways = [way for way in asked.ways.split(",") if way not in done]
        if ways:
            rows = _measure(workload, asked.servers, device, ways, asked.turns, asked.limit_seconds)
            new = {row["fleet"]: row for row in rows if row["fleet"] not in done}
            known["networks"] = [row for row in known["networks"] if row not in here or row["fleet"] not in new]
            known["networks"] += new.values()
            asked.out.parent.mkdir(parents=True, exist_ok=True)
            asked.out.write_text(json.dumps(known, indent=2) + "\n", encoding="utf-8")


def _is_of(row: dict[str, Any], workload: Workload, servers: int) -> bool:
    return (row["workload"], row["servers"]) == (workload.name, servers)


def _measure(
    workload: Workload, servers: int, device: torch.device, ways: list[str], turns: int, limit: float
) -> list[dict[str, Any]]:
    """A row for the loop and for each way; one that failed has its error in place of figures."""
    rows: list[dict[str, Any]] = []
    started = time.monotonic()
    try:
        results = measure_ways(workload, servers, device, ways, turns=turns, seconds=limit)
        for name, result in zip([*ways, "loop"], results, strict=True):
            rows.append(_row(workload, servers, name, result))
            _print(rows[-1])
    except Exception as error:  # noqa: BLE001 (the other networks are measured all the same)
        rows.append(_row(workload, servers, "loop", error))
        _print(rows[-1])
    print(f"{workload.name:22} {time.monotonic() - started:.0f} s in all", flush=True)
    return rows


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
    print(*words, row["note"] or "", flush=True)


def _describe(device: torch.device) -> dict[str, Any]:
    surroundings = environment()
    processor = f"{surroundings['processor']}, {torch.get_num_threads()} threads"
    name = torch.cuda.get_device_name() if device.type == "cuda" else processor
    return {"machine": {"name": name, **surroundings}, "networks": []}


if __name__ == "__main__":
    main()
