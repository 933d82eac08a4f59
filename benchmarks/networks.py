"""Networks that the field uses: the stacked fleet, lifted and looped over, against a tuned loop in the same process.

    python benchmarks/networks.py --device cpu --servers 4 --out benchmarks/results/networks-cpu.json
    python benchmarks/networks.py --device cuda --servers 64 --out benchmarks/results/networks-h200.json

Every network is written to the file as soon as it is measured. A command that was interrupted goes on behind the last
one: give it the same arguments once more.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from hatdfed.runs.malloc import keep_freed_memory
from hatdfed.runs.records.folder import environment
from hatdfed_bench.measure import measure
from hatdfed_bench.workload import FIELD, Workload

FLEETS = ("loop", "stacked", "lifted", "looped")


def main() -> None:
    """Measure what the file does not have yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], required=True)
    parser.add_argument("--servers", type=int, default=64)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--networks", default=",".join(workload.name for workload in FIELD))
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    keep_freed_memory()
    torch.set_float32_matmul_precision("high")  # TF32 on a GPU, for the loop as well
    device = torch.device(asked.device)
    known = json.loads(asked.out.read_text(encoding="utf-8")) if asked.out.exists() else _describe(device)
    done = {(row["workload"], row["servers"]) for row in known["networks"]}
    for workload in FIELD:
        if workload.name in asked.networks.split(",") and (workload.name, asked.servers) not in done:
            known["networks"] += _measure(workload, asked.servers, device, asked.turns)
            asked.out.write_text(json.dumps(known, indent=2) + "\n", encoding="utf-8")


def _measure(workload: Workload, servers: int, device: torch.device, turns: int) -> list[dict[str, Any]]:
    results = [result.as_json() for result in measure(workload, servers, device, fleets=FLEETS, turns=turns)]
    for row in results:
        speed = f"{row['speedup_over_loop']:.2f} × loop"
        print(
            f"{workload.name:22} {row['fleet']:8} {row['kernels'] or '':8} {row['seconds_per_round']:8.3f} s  {speed}"
        )
    return results


def _describe(device: torch.device) -> dict[str, Any]:
    surroundings = environment()
    processor = f"{surroundings['processor']}, {torch.get_num_threads()} threads"
    name = torch.cuda.get_device_name() if device.type == "cuda" else processor
    return {"machine": {"name": name, **surroundings}, "networks": []}


if __name__ == "__main__":
    main()
