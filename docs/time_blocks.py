"""Profiles of machines, and what `benchmarks/results/` says about simulated time, as parts of docs/time.md."""

from __future__ import annotations

from typing import Any

from bench_tables import load, table

from hatdfed.setup.machine_profiles import shipped_profiles

_FIGURES = {
    "idle_watts": "idle W",
    "training_watts": "training W",
    "training_gflops": "training GFLOP/s",
    "upload_mbit_per_second": "upload Mbit/s",
    "uplink_mbit_per_second": "uplink Mbit/s",
    "latency_seconds": "latency s",
}


def time_blocks() -> dict[str, str]:
    """The generated parts of the page, by their names."""
    return {
        "profiles": _profiles(),
        "asynchronous": _asynchronous(),
        "round-time": _round_time(),
        "time-to-accuracy": _time_to_accuracy(),
    }


def _profiles() -> str:
    cells = [
        [f"`{profile.name}`", *(f"{getattr(profile, key).value:g} ({getattr(profile, key).how})" for key in _FIGURES)]
        for profile in shipped_profiles().values()
    ]
    return table(("profile", *_FIGURES.values()), cells)


def _asynchronous() -> str:
    cells = [
        [
            run["case"],
            f"{run['servers']:,}",
            f"{run['trainings_per_round']:.0f}",
            f"{1e3 * run['seconds'] / run['rounds']:.0f} ms",
            f"{1e3 * run['schedule_seconds'] / run['rounds']:.1f} ms",
            f"{run['schedule_percent']:.2f} %",
        ]
        for run in load("asynchronous.json")["runs"]
    ]
    headings = ("run", "servers", "trainings a tick", "processor time of a tick", "of it the schedule", "share")
    return f"What the schedule costs (`benchmarks/asynchronous.py`):\n\n{table(headings, cells)}"


def _round_time() -> str:
    cells = []
    for case in load("round-time-cpu.json")["cases"]:
        real, simulated = (sum(case[name]) / len(case[name]) for name in ("seconds", "simulated_seconds"))
        rates = " and ".join(f"{rate:g}" for rate in case["mbit_per_second"])
        mean, worst = (f"{case[name]:+.1f} %".replace("-", "−") for name in ("error_percent", "worst_error_percent"))
        times = [f"{real:.1f} s", f"{simulated:.1f} s"]
        cells.append([f"`{case['method']}`", rates, str(case["edges"]), *times, mean, worst])
    headings = ("method", "uplinks, Mbit/s", "edges", "a round took", "simulated", "difference", "of the worst round")
    return table(headings, cells)


def _time_to_accuracy() -> str:
    found = load("time-to-accuracy-digits.json")
    targets = [name.removeprefix("seconds_to_") for name in found["rows"][0] if _is_target(name)]
    cells = [
        [
            f"`{row['method']}`",
            row["mode"],
            *(_interval(row[f"seconds_to_{target}"], len(found["seeds"]), " s") for target in targets),
            _interval(row["last_validation_accuracy"], len(found["seeds"]), " %"),
            f"{row['joules']['mean'] / 1e3:.1f} kJ",
        ]
        for row in found["rows"]
    ]
    headings = ("method", "rounds", *(f"time to {target} %" for target in targets), "at the end", "energy")
    seeds = f"{found['seeds'][0]} to {found['seeds'][-1]}"
    return f"Means over seeds {seeds} with 95 % intervals; in brackets, how many seeds got there.\n\n" + table(
        headings, cells
    )


def _is_target(name: str) -> bool:
    return name.startswith("seconds_to_") and not name.endswith("_difference")


def _interval(figure: dict[str, Any] | None, seeds: int, unit: str) -> str:
    if figure is None:
        return "never"
    spread = "" if figure["high"] is None else f" ± {figure['high'] - figure['mean']:.3g}"
    reached = "" if figure["n"] == seeds else f" ({figure['n']} of {seeds})"
    return f"{figure['mean']:.4g}{spread}{unit}{reached}"
