"""Servers on solar panels: who is away when, and that nobody spends what it does not have.

Ten servers learn the digits for two days, a round every half hour. They are on mains, or have a battery and a panel
each: one that brings more than a server on mains spends, or one that brings less. The weather is that of two days in
April of a typical year in Greensboro, North Carolina (pvlib's data), or by formula with `--site none`. An exploration
with a few seeds: accuracies are those of validation images, and no method is chosen by them.

python benchmarks/batteries.py [--seeds 5] [--rounds 96] [--site greensboro] [--out FILE.json]
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import hatdfed
from hatdfed.core.traces import Trace
from hatdfed.data.traces.files import write_trace
from hatdfed.data.traces.solar import Panel, make_solar_by_formula, make_solar_of_site
from hatdfed.runs.records.folder import environment
from hatdfed.runs.result import RunResult
from hatdfed.runs.round_row import joules_of

FIRST_SEED = 30
SERVERS, ROUND_SECONDS, BATTERY_JOULES = 10, 1800, 1500.0
FIRST_DAY, DAYS = 100, 2
SETTINGS: dict[str, Any] = {"dataset": "digits", "servers": SERVERS, "validation_images": 200, "method": "hat-dfed"}
PANELS = {"mains": None, "panel of 0.2 W": 0.2, "panel of 0.1 W": 0.1}  # watts at full sun


def make_sun(peak_watts: float, site: str, seed: int) -> Trace:
    """The power of every server's panel."""
    panel = Panel(peak_watts, shade=0.3)
    if site == "none":
        return make_solar_by_formula(seed, SERVERS, panel, latitude=36.1, first_day=FIRST_DAY, days=DAYS)
    return make_solar_of_site(seed, SERVERS, panel, site=site, first_day=FIRST_DAY, days=DAYS)


def play(peak_watts: float | None, site: str, seed: int, rounds: int, folder: Path) -> dict[str, Any]:
    """One run, and what became of its batteries."""
    supply: dict[str, Any] = {}
    if peak_watts is not None:
        path = folder / f"sun-{peak_watts}-{seed}.csv"
        write_trace(path, make_sun(peak_watts, site, seed), [f"server {i}" for i in range(SERVERS)], [])
        supply = {"battery_joules": BATTERY_JOULES, "first_charge": 0.5, "harvest_trace": str(path)}
        supply["round_seconds"] = ROUND_SECONDS
    return describe(hatdfed.run(**SETTINGS, seed=seed, rounds=rounds, supply=supply), seed)


def describe(result: RunResult, seed: int) -> dict[str, Any]:
    """The figures of a run; hours are those of the day, two rounds each."""
    away = [row for row in result.servers if row["away"]]
    charges = [row["charge"] for row in result.servers if row["charge"] is not None]
    broken = {(row["t"], row["server"]) for row in away}
    at_fault = [
        row
        for row in result.ledger
        if row["joules"] and {(row["t"], row["sender"]), (row["t"], row["receiver"])} & broken
    ]
    return {
        "seed": seed,
        "validation_accuracy": result.rounds[-1]["avg_accuracy"],
        "joules": sum(map(joules_of, result.rounds)),
        "links": sum(row["links"] for row in result.rounds),
        "share_away": len(away) / len(result.servers),
        "away_because": dict(Counter(row["away"] for row in away)),
        "away_by_hour": [sum(1 for row in away if row["t"] // 2 % 24 == hour) for hour in range(24)],
        "lowest_charge": min(charges, default=None),
        "payments_of_absent_servers": len(at_fault),
    }


def main() -> None:
    """Play all cases with all seeds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=96)
    parser.add_argument("--site", default="greensboro")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/batteries-cpu.json"))
    options = parser.parse_args()
    began, cases = time.perf_counter(), {}
    with tempfile.TemporaryDirectory() as folder:
        for name, watts in PANELS.items():
            cases[name] = [
                play(watts, options.site, seed, options.rounds, Path(folder))
                for seed in range(FIRST_SEED, FIRST_SEED + options.seeds)
            ]
            print(name, [row["validation_accuracy"] for row in cases[name]], flush=True)
    report = {
        "site": options.site,
        "rounds": options.rounds,
        "round_seconds": ROUND_SECONDS,
        "battery_joules": BATTERY_JOULES,
        "settings": SETTINGS,
        "cases": cases,
        "seconds": round(time.perf_counter() - began, 1),
        "machine": environment(),
    }
    options.out.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
