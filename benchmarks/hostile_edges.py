"""Two of eight edges are hostile: what happens to the other six? Real processes with certificates. Exploratory.

    OMP_NUM_THREADS=1 python benchmarks/hostile_edges.py [--seeds 20] [--only TEXT] [--methods METHOD …] [--rounds 200]
        prints a line for each run, writes results/hostile-edges-cpu.json

The hostile edges (`hatdfed_bench.hostile_edge`) join, train and report like the others, but offer false models; with
`false-reports` they offer honest models and send false reports. They are started first, so that they are servers 0
and 1 in every run. Accuracies are those of the six others on validation data after the last round; the test set is not
used. A run that is in the file already is not played again.

There are two references. In `none` the same two edges are honest. In `absent` they get their server numbers and are
drained before the first round, so the six others are alone: with the same data, devices and prices as in all other
runs, because these depend on the seed and the server number, and with the same method. (An oracle that is told whom not
to hear would be another method, and six servers that were set up as six would have other data.)
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
from typing import Any, NamedTuple

import numpy as np
from deployment import Processes

from hatdfed.runs.records.folder import RunFolder, environment
from hatdfed.runs.trust_history import read_changes, summarise_groups
from hatdfed_bench.hostile_edge import AVAILABLE

SERVERS, HOSTILE, ROUNDS = 8, 2, 200
METHODS = ("hat-dfed-trust", "hat-dfed-plus-0.1")
NOBODY = "none"  # the two edges are honest
ABSENT = "absent"  # the two edges leave before the first round
REFERENCES = (NOBODY, ABSENT)
JOIN_SECONDS, RUN_SECONDS, END_SECONDS = 120.0, 1800.0, 60.0
HOSTILE_EDGE = (sys.executable, "-m", "hatdfed_bench.hostile_edge")
_LOOK_SECONDS = 0.5  # between two looks at the status
RESULTS = Path(__file__).with_name("results") / "hostile-edges-cpu.json"


class Run(NamedTuple):
    """What tells a run from others."""

    method: str
    attack: str
    seed: int
    rounds: int

    @property
    def settings(self) -> dict[str, Any]:
        """Digits with unequal labels; limits that a busy machine does not reach."""
        world = {"dataset": "digits", "servers": SERVERS, "rounds": self.rounds, "label_concentration": 0.3}
        deploy = {"round_seconds": 120.0, "away_seconds": 60.0, "idle_seconds": 30.0}
        return {"method": self.method, "seed": self.seed, **world, "deploy": deploy}


class Watcher:
    """What the coordinator says about its members during a run."""

    def __init__(self) -> None:
        self.quarantined: set[int] = set()
        self.refused: dict[int, dict[str, int]] = {}  # models by server and reason

    def note(self, status: dict[str, Any]) -> None:
        """One look."""
        self.quarantined |= {each["index"] for each in status["servers"] if each["quarantined"]}
        self.refused |= {each["index"]: each["refused"] for each in status["servers"] if each["refused"]}


def play(folder: Path, played: Run) -> dict[str, Any]:
    """One run, from the first process to the results."""
    watcher, began = Watcher(), time.monotonic()
    with Processes(folder, played.settings) as running:
        start_edges(running, played.attack)
        asyncio.run(asyncio.wait_for(running.watch(watcher.note, _LOOK_SECONDS), RUN_SECONDS))
        codes = [process.wait(timeout=END_SECONDS) for process in (running.coordinator, *running.edges)]
    if any(codes):
        raise SystemExit(f"{played}: exit codes {codes} of the coordinator and the edges.")
    return {
        **read_records(folder / "run", played.rounds),
        "quarantined": sorted(watcher.quarantined),
        "refused": {str(server): counts for server, counts in sorted(watcher.refused.items())},
        "seconds": round(time.monotonic() - began, 1),
    }


def start_edges(running: Processes, attack: str) -> None:
    """Start the two edges that may be hostile, and the others once these have their server numbers."""
    two = tuple(map(str, range(HOSTILE)))
    for _ in two:
        if attack in REFERENCES:
            running.start_edge()
        else:
            running.start_edge("--attack", attack, "--friends", *two, command=HOSTILE_EDGE)
    running.until(lambda status: len(status["servers"]) >= HOSTILE, JOIN_SECONDS)
    if attack == ABSENT:
        # An edge that is drained before it is ready ends with an error.
        running.until(lambda status: sum(each["active"] for each in status["servers"]) == HOSTILE, JOIN_SECONDS)
        for number in range(HOSTILE):
            running.drain(f"edge-{number}")
    for _ in range(SERVERS - HOSTILE):
        running.start_edge()


def read_records(folder: Path, rounds: int) -> dict[str, Any]:
    """Read from the run folder what became of the six, what they heard of the two, and whom the coordinator caught."""
    run = RunFolder(folder)
    results = run.read_final(rounds)
    if results is None:
        raise SystemExit(f"The run ended before round {rounds}.")
    with closing(run.read()) as database:
        servers, links, ledger, trust = (database.records(name) for name in ("servers", "links", "ledger", "trust"))
    groups = summarise_groups(read_changes(trust))
    # Each server's last report: one in quarantine keeps its model and does not report; one that is absent never does.
    last = {row["server"]: row["accuracy"] for row in sorted(servers, key=lambda row: row["t"])}
    by_server = [last.get(server) for server in range(SERVERS)]
    honest = [last[server] for server in range(HOSTILE, SERVERS)]
    false = [row for row in links if row["sender"] < HOSTILE <= row["receiver"] and row["delivered"]]
    return {
        "accuracy": float(np.mean(honest)),
        "worst": min(honest),
        "by_server": by_server,
        "link_joules": sum(row["joules"] for row in ledger if row["cause"] == "link"),
        "undelivered": sum(not row["delivered"] for row in links),
        "received_from_two": len(false),
        "merged_from_two": sum((row["importance"] or 0) > 0 for row in false),
        "caught": results["caught"],
        **({"groups": groups["groups"], "alone": groups["alone"]} if groups else {}),
    }


def play_missing(rows: list[dict[str, Any]], options: argparse.Namespace) -> None:
    """Play what is not among the rows, and write the file after each run."""
    have = {Run(*(row[name] for name in Run._fields)) for row in rows}
    attacks = [attack for attack in (*REFERENCES, *AVAILABLE) if options.only in attack]
    for seed, method, attack in itertools.product(options.seeds, options.methods, attacks):
        wanted = Run(method, attack, seed, options.rounds)
        if wanted in have:
            continue
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name) if options.keep is None else options.keep / f"{method}-{attack}-{seed}"
            folder.mkdir(parents=True, exist_ok=True)
            row = {**wanted._asdict(), **play(folder, wanted)}
        rows.append(row)
        content = {"machine": environment(), "servers": SERVERS, "hostile": HOSTILE, "rows": rows}
        options.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        _print_row(row)


def _print_row(row: dict[str, Any]) -> None:
    print(
        f"{row['attack']:12} {row['method']:18} {row['accuracy']:5.1f}  worst {row['worst']:5.1f}  "
        f"{row['link_joules']:7.0f} J  merged {row['merged_from_two']:3} of {row['received_from_two']:3}  "
        f"caught {[each['server'] for each in row['caught']]}  quarantined {row['quarantined']}  "
        f"groups {row.get('groups')}  alone {row.get('alone')}  {row['seconds']:.0f} s",
        flush=True,
    )


def main() -> None:
    """Play, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[20])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--methods", nargs="+", default=METHODS, metavar="METHOD")
    parser.add_argument("--only", default="", metavar="TEXT", help="attacks with this in their names")
    parser.add_argument("--keep", type=Path, help="new folder for logs and records, which are deleted otherwise")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    play_missing(json.loads(options.out.read_text())["rows"] if options.out.exists() else [], options)


if __name__ == "__main__":
    main()
