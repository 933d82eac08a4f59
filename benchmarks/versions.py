"""Two versions of hatdfed timed in turns on one machine: what a change costs each fleet.

    python benchmarks/versions.py --before OLD/src --after src:benchmarks/src --device cpu --out FILE
    python benchmarks/versions.py … --device cuda --servers 50,350 --fleets stacked --rounds 40

Each turn starts `hatdfed bench` from the named source folders in a process of its own, first one version, then the
other. Where the stacked fleet alone is timed, its rounds are timed without all else that `bench` measures. A machine's
speed drifts, so what is compared are the two halves of a turn: the ratio is the median over turns.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from hatdfed.runs.records.folder import environment

Figures = dict[tuple[int, str], float]  # server rounds per second, by number of servers and fleet


def main() -> None:
    """Time both versions, keep everything after every turn, print the ratios."""
    options = _options()
    turns: list[list[dict[str, Any]]] = []
    for number in range(options.turns):
        turns.append(_turn(options, number))
        rows = [row for turn in turns for row in turn]
        result = {"machine": environment(), "device": options.device, "rows": rows, "ratios": _ratios(turns)}
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    for ratio in _ratios(turns):
        print("{servers:4} servers  {fleet:8} {speed:.3f} of the speed before".format(**ratio))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for version in ("before", "after"):
        parser.add_argument(f"--{version}", required=True, help="folders to import from, separated by colons")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--servers", default="5,20")
    parser.add_argument("--fleets", default="mailbox,stacked")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds of each fleet in a turn")
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


def _turn(options: argparse.Namespace, number: int) -> list[dict[str, Any]]:
    order = ("before", "after") if number % 2 == 0 else ("after", "before")
    rows = []
    for version in order:
        figures = _figures(getattr(options, version), options)
        rows += [
            {"turn": number, "version": version, "servers": servers, "fleet": fleet, "server_rounds_per_second": speed}
            for (servers, fleet), speed in figures.items()
        ]
    return rows


# Of version 0.1.0, which had its benchmarks inside the package, and of the present one.
_STACKED_ROUNDS = """
import json, statistics, sys, torch
try:
    from hatdfed_bench import machine, measure, workload
except ImportError:
    from hatdfed.allocation import keep_freed_memory
    from hatdfed.bench import machine, measure, workload
else:
    from hatdfed.runs.process_memory import keep_freed_memory
keep_freed_memory()  # as a run does
device, sizes, rounds = torch.device(sys.argv[1]), sys.argv[2].split(","), int(sys.argv[3])
for servers in map(int, sizes):
    turn = measure.one_turn(workload.W, servers, device, 1)
    seconds = [machine.timed(turn, device) for _ in range(rounds + 5)][5:]
    print(json.dumps({"servers": servers, "speed": servers / statistics.median(seconds)}))
"""


def _figures(folders: str, options: argparse.Namespace) -> Figures:
    if options.fleets == "stacked":
        timed = _run(folders, ["-c", _STACKED_ROUNDS, options.device, options.servers, str(options.rounds)])
        return {(row["servers"], "stacked"): row["speed"] for row in map(json.loads, timed.splitlines())}
    separate = any((Path(folder) / "hatdfed_bench").is_dir() for folder in folders.split(":"))
    module = ["hatdfed_bench"] if separate else ["hatdfed", "bench"]  # 0.1.0 had its benchmarks inside
    command = ["-m", *module, "--json", "--device", options.device, "--servers", options.servers]
    report = json.loads(_run(folders, [*command, "--fleets", options.fleets, "--turns", str(options.rounds)]))
    return {(row["servers"], row["fleet"]): row["server_rounds_per_second"] for row in report["workloads"]}


def _run(folders: str, arguments: list[str]) -> str:
    variables = {**os.environ, "PYTHONPATH": f"{folders}:{os.environ.get('PYTHONPATH', '')}"}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, env=variables, check=True, stdout=subprocess.PIPE, text=True)  # noqa: S603 (ourselves)
    return done.stdout


def _ratios(turns: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Speed after over speed before: median over turns, with the lowest and the highest."""
    ratios = []
    for servers, fleet in sorted({(row["servers"], row["fleet"]) for row in turns[0]}):
        each = []
        for rows in turns:
            speed = {row["version"]: row["server_rounds_per_second"]
                     for row in rows if (row["servers"], row["fleet"]) == (servers, fleet)}  # fmt: skip
            each.append(speed["after"] / speed["before"])
        figures = {"speed": statistics.median(each), "lowest": min(each), "highest": max(each)}
        ratios.append({"servers": servers, "fleet": fleet, **figures})
    return ratios


if __name__ == "__main__":
    main()
