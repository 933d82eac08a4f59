"""A long run with a random fault every 20 s: `python -m tests.faults.matrix.soak [--minutes 45] [--edges 5]`.

At its end the checker reads the history, all topologies are drawn again from the same absences and reports, and the
growth of memory, descriptors and threads is estimated.
"""

import argparse
import json
import os
import platform
import random
import shutil
import signal
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from tests.faults.matrix.cluster import Cluster, make_config
from tests.faults.matrix.machines import NotPossibleError
from tests.faults.matrix.replay import replay_links
from tests.faults.matrix.rows import BUSY

from hatdfed.testing.promises import find_violations

RESULTS = Path(__file__).resolve().parents[3] / "docs" / "faults"
PERIOD = 20.0  # seconds between faults
SAMPLE = 5.0
MEGABYTES_IN_TEN_MINUTES = 1.0
_WEIGHTS = (1, 3, 4, 4, 4, 4)  # fewer kills than other faults: a process has to live for a while to show that it grows
_WARM_SECONDS = 120.0  # in which caches are filled and libraries loaded


class Nemesis:
    """Chooses faults at random, and undoes each before the next."""

    def __init__(self, cluster, seed):
        self._cluster, self._rng = cluster, random.Random(seed)  # noqa: S311
        self.injected = []
        self._undo = lambda: None

    def strike(self):
        self._undo()
        self._undo = lambda: None
        name, cluster = self._rng.choice(self._cluster.names), self._cluster
        kinds = [self._kill_coordinator, self._kill_edge, self._freeze, self._cut, self._slow, self._mute]
        [kind] = self._rng.choices(kinds, weights=_WEIGHTS)
        try:
            kind(cluster, name)
        except NotPossibleError:
            self._kill_edge(cluster, name)
        self.injected.append(kind.__name__.strip("_").replace("_", " "))

    def stop(self):
        self._undo()

    def _kill_coordinator(self, cluster, _):
        cluster.kill("coordinator")
        time.sleep(self._rng.uniform(0.5, 4))
        cluster.start_coordinator()

    def _kill_edge(self, cluster, name):
        cluster.kill(name)
        time.sleep(self._rng.uniform(0, 6))
        cluster.start_edge(name)

    def _freeze(self, cluster, name):
        cluster.freeze(name)
        time.sleep(self._rng.uniform(1, 10))
        cluster.thaw(name)

    def _cut(self, cluster, name):
        cluster.machines.pull_cable(name)
        self._undo = lambda: cluster.machines.plug_cable(name)

    def _slow(self, cluster, name):
        cluster.machines.slow_down(name, 500)
        self._undo = lambda: cluster.machines.speed_up(name)

    def _mute(self, cluster, name):
        other = self._rng.choice([each for each in cluster.machines.names if each != name])
        cluster.machines.mute(name, other)
        self._undo = lambda: cluster.machines.unmute(name, other)


class Meter:
    """Samples memory, descriptors and files of processes, by start of each: a restart begins a new series."""

    def __init__(self, cluster):
        self._cluster = cluster
        self._series = {}

    def sample(self, now):
        for name, process in self._cluster.processes.items():
            try:
                found = self._cluster.memory(name)
            except OSError:
                continue
            self._series.setdefault((name, process.pid), []).append((now, found))

    def write(self, path):
        """All samples, for whoever wants to know which process grew when."""
        rows = [
            {"process": name, "pid": pid, "at": round(at, 1), **found}
            for (name, pid), samples in self._series.items()
            for at, found in samples
        ]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")

    def slope(self, names, quantity):
        """The growth in 10 minutes that all processes of these names have in common, each from its own level."""
        ages, values = [np.zeros(0)], [np.zeros(0)]
        for (name, _), samples in self._series.items():
            points = [(at, each[quantity]) for at, each in samples if at - samples[0][0] > _WARM_SECONDS]
            if name in names and len(points) > 1:
                age, value = np.array(points).T
                ages.append(age - age.mean())
                values.append(value - value.mean())
        age, value = np.concatenate(ages), np.concatenate(values)
        return {
            "slope": round(600 * float(age @ value / (age @ age)), 3) if len(age) else None,
            "process_minutes": round(len(age) * SAMPLE / 60, 1),
            "longest_minutes": round(max((float(np.ptp(each)) for each in ages if len(each)), default=0.0) / 60, 1),
        }


def soak(folder, seconds, seed, edges):
    """Play until the time is up; returns the report."""
    config = make_config("hat-dfed", rounds=10**6, servers=edges)
    with Cluster(folder, config, min_servers=1 + edges // 2) as cluster:
        cluster.start()
        cluster.until_round(1, seconds=60 + 10 * edges)
        nemesis, meter = Nemesis(cluster, seed), Meter(cluster)
        end, strike_at = time.monotonic() + seconds, time.monotonic() + PERIOD
        while time.monotonic() < end:
            for name, process in list(cluster.processes.items()):
                if process.poll() is not None:
                    raise AssertionError(f"{name} ended with {process.poll()}: {cluster.log(name)[-1000:]}")
            meter.sample(time.monotonic())
            if time.monotonic() > strike_at:
                nemesis.strike()
                strike_at += PERIOD
            time.sleep(SAMPLE)
        nemesis.stop()
        meter.write(folder / "samples.jsonl")
        cluster.until_event("close", after=time.monotonic() + 1, seconds=90)
    events = cluster.events()
    again = replay_links(cluster.state / "journal.sqlite", config, events)
    violations = [str(each) for each in find_violations(events, slack=BUSY, expected_links=again)]
    absent = sum(len(event["active"]) < edges for event in cluster.events("plan"))
    roles = {"coordinator": ["coordinator"], "edges": cluster.names}
    return {
        "seconds": seconds,
        "seed": seed,
        "edges": edges,
        "rounds_with_absences": absent,
        "rounds": len(again),
        "events": len(events),
        "faults": {kind: nemesis.injected.count(kind) for kind in sorted(set(nemesis.injected))},
        "violations": violations,
        "in_ten_minutes": {
            quantity: {role: meter.slope(names, quantity) for role, names in roles.items()}
            for quantity in ("megabytes", "descriptors", "threads")
        },
        "files_in_stores": {name: len(list(cluster.store(name).iterdir())) for name in cluster.names},
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=45.0)
    parser.add_argument("--edges", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="soak.json", help=f"the file in {RESULTS}")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    folder = Path(tempfile.mkdtemp(prefix="hatdfed-soak-"))
    report = soak(folder, 60 * arguments.minutes, arguments.seed, arguments.edges)
    report["date"] = datetime.now(UTC).date().isoformat()
    report["machine"] = {"kernel": platform.release(), "python": platform.python_version(), "cores": os.cpu_count()}
    print(json.dumps(report, indent=2))  # noqa: T201
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / arguments.out).write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    grown = max(each["slope"] or 0.0 for each in report["in_ten_minutes"]["megabytes"].values())
    is_good = not report["violations"] and grown < MEGABYTES_IN_TEN_MINUTES
    if is_good:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        print(f"kept in {folder}")  # noqa: T201
    sys.exit(0 if is_good else 1)


if __name__ == "__main__":
    main()
