"""What the schedule of asynchronous rounds costs: its share of the time of runs with 1,000 servers.

OMP_NUM_THREADS=1 python benchmarks/asynchronous.py             prints figures, writes results/asynchronous.json
OMP_NUM_THREADS=1 python benchmarks/asynchronous.py --quick     the same with fewer rounds, prints only

Every question that the coordinator asks of the schedule is timed: who is due, which links can be used, how long a tick
takes. Servers are four kinds of machines in turn, so that about half of them are due in a tick. Time is that of the
process, so that others may use the machine meanwhile.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hatdfed.core.timing.own_pace import OwnPace
from hatdfed.runs.calls import run
from hatdfed.runs.records.folder import environment
from hatdfed.setup.config import Config
from hatdfed.setup.layers import resolve

SERVERS, ROUNDS = 1000, 20
ASKED = ("find_training", "find_exchanging", "find_possible", "close_round", "first_busy", "next_busy")
CASES: dict[str, dict[str, Any]] = {
    "ad-psgd, all links considered": {"method": "ad-psgd"},
    "rnd, 16 candidates": {"method": "rnd", "candidates": 16, "link_share": 0.1},
    "hat-dfed, 16 candidates": {"method": "hat-dfed", "candidates": 16, "link_share": 0.1},
}


class Stopwatch:
    """Seconds of the process within functions, those that call each other counted once."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._depth = 0

    def timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, timed."""

        def call(*arguments: Any) -> Any:
            self._depth += 1
            start = time.process_time()
            try:
                return function(*arguments)
            finally:
                self._depth -= 1
                if not self._depth:
                    self.seconds += time.process_time() - start

        return call


def measure(settings: dict[str, Any], rounds: int, watch: Stopwatch) -> dict[str, Any]:
    """One run: the time of the schedule, and that of everything, from the second round on."""
    config: Config = resolve(
        {
            "dataset": "digits",
            "servers": SERVERS,
            "rounds": rounds,
            "machines": {"profiles": ["raspberry-pi-4", "phone", "intel-nuc", "jetson-orin"]},
            "time": {"asynchronous": True},
            **settings,
        }
    )
    marks: list[tuple[float, float, int]] = []

    def on_round(_: Config, record: Any) -> None:
        marks.append((time.process_time(), watch.seconds, int((record.report.num_samples > 0).sum())))

    result = run(config, on_round=on_round, fleet="stacked", device="cpu")
    whole, schedule = (marks[-1][place] - marks[0][place] for place in (0, 1))
    return {
        "servers": SERVERS,
        "rounds": rounds - 1,
        "trainings_per_round": sum(mark[2] for mark in marks[1:]) / (rounds - 1),
        "seconds": whole,
        "schedule_seconds": schedule,
        "schedule_percent": 100 * schedule / whole,
        "simulated_seconds": result.summary["simulated_seconds"],
    }


def main() -> None:
    """Measure all cases, print and write them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few rounds, nothing is written")
    quick = parser.parse_args().quick
    watch = Stopwatch()
    for name in ASKED:
        setattr(OwnPace, name, watch.timed(getattr(OwnPace, name)))
    rows = []
    for case, settings in CASES.items():
        rows.append({"case": case, **measure(settings, 4 if quick else ROUNDS, watch)})
        print(json.dumps(rows[-1]), flush=True)
    if not quick:
        place = Path(__file__).parent / "results/asynchronous.json"
        place.write_text(json.dumps({"environment": environment(), "runs": rows}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
