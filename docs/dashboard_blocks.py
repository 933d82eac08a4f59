"""What `benchmarks/results/dashboard*.json` hold, as parts of docs/dashboard.md."""

from __future__ import annotations

from typing import Any

from bench_tables import load, table

_ROWS = (
    ("list_first", "the list, immediately after the start"),
    ("list_first_later", "the list, two seconds after the start"),
    ("list", "the list again"),
    ("list_after_a_change", "the list, after a run has changed"),
    ("run_page", "a run's page"),
    ("run_series", "a run's curves"),
    ("one_round", "one round of a run"),
    ("comparison_of_60", "a comparison of 60 runs"),
)


def dashboard_blocks() -> dict[str, str]:
    """The generated parts of the page, by their names."""
    return {"dashboard-speed": _speed(), "dashboard-watch": _watch()}


def _speed() -> str:
    report = load("dashboard.json")
    cells = [[words, *_times(report[name])] for name, words in _ROWS if name in report]
    machine = report["environment"]
    laps = report["memory"]["mib_after_each_lap"]
    questions = len(laps) * report["memory"]["questions_in_a_lap"]
    where = f"{report['runs']} runs of {report['rounds']} rounds; {machine['processor']}, {machine['cores']} cores."
    memory = (
        f"Memory of the process: {laps[0]:.0f} MiB after the first third of {questions:,} requests, "
        f"{laps[-1]:.0f} MiB after the last."
    )
    return f"{where}\n\n{table(('request', 'median ms', 'slowest ms'), cells)}\n\n{memory}"


def _times(found: dict[str, Any]) -> list[str]:
    if "ms" in found:  # asked once
        return [f"{found['ms']:.0f}", "–"]
    return [f"{found['median_ms']:.0f}", f"{found['worst_ms']:.0f}"]


def _watch() -> str:
    found = load("dashboard_watch.json")
    first, later, last = (found[f"mib_{when}"] for when in ("at_the_start", "after_a_minute", "at_the_end"))
    return (
        f"Memory while {found['readers']} clients watched a run for {found['minutes']:.0f} minutes, in which it gained "
        f"{found['rounds_gained']:,} rounds and they received {found['events_taken']:,} events: {first:.0f} MiB at the "
        f"start, {later:.0f} after a minute, {last:.0f} at the end. From minute {found['warm_after_minutes']} on it "
        f"changed by {found['kib_a_minute_when_warm']:+.0f} KiB per minute; at most {found['files_at_most']} files and "
        f"{found['threads_at_most']} threads were open."
    )
