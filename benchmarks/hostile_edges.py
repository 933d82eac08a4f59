"""Two of eight edges are hostile: what happens to the other six? Real processes with certificates. Exploratory.

    OMP_NUM_THREADS=1 python benchmarks/hostile_edges.py [--seeds 20] [--only TEXT]
        prints a line for each run, writes results/hostile-edges-cpu.json

The hostile edges (`hatdfed_bench.hostile_edge`) join, train and report like the others, but offer false models. They
are started first, so that they are servers 0 and 1 in every run. For reference the same two edges are honest.
Accuracies are those of the six others on validation data after the last round; the test set is not used. A run that is
in the file already is not played again.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from deployment import Processes

from hatdfed.runs.records.folder import RunFolder, environment
from hatdfed.runs.trust_history import read_changes, summarise_groups
from hatdfed_bench.hostile_edge import AVAILABLE

SERVERS, HOSTILE, ROUNDS = 8, 2, 60
METHODS = ("hat-dfed-trust", "hat-dfed-plus-0.1")
NOBODY = "none"  # the attack of the reference: the two edges are honest
JOIN_SECONDS, RUN_SECONDS, END_SECONDS = 120.0, 900.0, 60.0
HOSTILE_EDGE = (sys.executable, "-m", "hatdfed_bench.hostile_edge")
RESULTS = Path(__file__).with_name("results") / "hostile-edges-cpu.json"


def settings(method: str, seed: int) -> dict[str, Any]:
    """Digits with unequal labels; limits that a busy machine does not reach."""
    world = {"dataset": "digits", "servers": SERVERS, "rounds": ROUNDS, "label_concentration": 0.3}
    deploy = {"round_seconds": 120.0, "away_seconds": 60.0, "idle_seconds": 30.0}
    return {"method": method, "seed": seed, **world, "deploy": deploy}


class Watcher:
    """What the coordinator says about its members during a run."""

    def __init__(self) -> None:
        self.quarantined: set[int] = set()
        self.refused: dict[int, dict[str, int]] = {}  # models by server and reason

    def note(self, status: dict[str, Any]) -> None:
        """One look."""
        self.quarantined |= {each["index"] for each in status["servers"] if each["quarantined"]}
        self.refused |= {each["index"]: each["refused"] for each in status["servers"] if each["refused"]}


def play(folder: Path, method: str, attack: str, seed: int) -> dict[str, Any]:
    """One run, from the first process to the results."""
    watcher, began = Watcher(), time.monotonic()
    with Processes(folder, settings(method, seed)) as running:
        start_edges(running, attack)
        asyncio.run(asyncio.wait_for(running.watch(watcher.note, 0.5), RUN_SECONDS))
        codes = [process.wait(timeout=END_SECONDS) for process in (running.coordinator, *running.edges)]
    if any(codes):
        raise SystemExit(f"{method}, {attack}: exit codes {codes} of the coordinator and the edges.")
    return {
        **read_records(folder / "run"),
        "quarantined": sorted(watcher.quarantined),
        "refused": {str(server): counts for server, counts in sorted(watcher.refused.items())},
        "seconds": round(time.monotonic() - began, 1),
    }


def start_edges(running: Processes, attack: str) -> None:
    """Start the two edges that may be hostile, and the others once these have their server numbers."""
    for _ in range(HOSTILE):
        if attack == NOBODY:
            running.start_edge()
        else:
            running.start_edge("--attack", attack, command=HOSTILE_EDGE)
    running.until(lambda status: len(status["servers"]) >= HOSTILE, JOIN_SECONDS)
    for _ in range(SERVERS - HOSTILE):
        running.start_edge()


def read_records(folder: Path) -> dict[str, Any]:
    """Read from the run folder what became of the six, what they heard of the two, and whom the coordinator caught."""
    run = RunFolder(folder)
    results = run.read_final(ROUNDS)
    if results is None:
        raise SystemExit(f"The run ended before round {ROUNDS}.")
    with closing(run.read()) as database:
        servers, links, ledger, trust = (database.records(name) for name in ("servers", "links", "ledger", "trust"))
    groups = summarise_groups(read_changes(trust))
    # Each server's last report: one in quarantine keeps its model and does not report.
    last = {row["server"]: row["accuracy"] for row in sorted(servers, key=lambda row: row["t"])}
    by_server = [last[server] for server in range(SERVERS)]
    false = [row for row in links if row["sender"] < HOSTILE <= row["receiver"] and row["delivered"]]
    return {
        "accuracy": float(np.mean(by_server[HOSTILE:])),
        "worst": min(by_server[HOSTILE:]),
        "by_server": by_server,
        "link_joules": sum(row["joules"] for row in ledger if row["cause"] == "link"),
        "undelivered": sum(not row["delivered"] for row in links),
        "received_from_two": len(false),
        "merged_from_two": sum((row["importance"] or 0) > 0 for row in false),
        "caught": [each["server"] for each in results["caught"]],
        **({"groups": groups["groups"], "alone": groups["alone"]} if groups else {}),
    }


def play_missing(rows: list[dict[str, Any]], options: argparse.Namespace) -> None:
    """Play what is not among the rows, and write the file after each run."""
    have = {(row["method"], row["attack"], row["seed"]) for row in rows}
    attacks = [attack for attack in (NOBODY, *AVAILABLE) if options.only in attack]
    for attack, method, seed in itertools.product(attacks, METHODS, options.seeds):
        if (method, attack, seed) in have:
            continue
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name) if options.keep is None else options.keep / f"{method}-{attack}-{seed}"
            folder.mkdir(parents=True, exist_ok=True)
            row = {"method": method, "attack": attack, "seed": seed, **play(folder, method, attack, seed)}
        rows.append(row)
        content = {"machine": environment(), "servers": SERVERS, "hostile": HOSTILE, "rounds": ROUNDS, "rows": rows}
        options.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        _print_row(row)


def _print_row(row: dict[str, Any]) -> None:
    print(
        f"{row['attack']:12} {row['method']:18} {row['accuracy']:5.1f}  worst {row['worst']:5.1f}  "
        f"{row['link_joules']:7.0f} J  merged {row['merged_from_two']:3} of {row['received_from_two']:3}  "
        f"caught {row['caught']}  quarantined {row['quarantined']}  groups {row.get('groups')}  "
        f"alone {row.get('alone')}  {row['seconds']:.0f} s",
        flush=True,
    )


def main() -> None:
    """Play, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[20])
    parser.add_argument("--only", default="", metavar="TEXT", help="attacks with this in their names")
    parser.add_argument("--keep", type=Path, help="new folder for logs and records, which are deleted otherwise")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    play_missing(json.loads(options.out.read_text())["rows"] if options.out.exists() else [], options)


if __name__ == "__main__":
    main()
