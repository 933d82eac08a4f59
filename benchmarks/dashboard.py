"""How fast the dashboard answers for 200 runs of 200 rounds, and whether it grows.

python benchmarks/dashboard.py [--out benchmarks/results/dashboard.json]

One run is played and copied with other seeds, one in twenty as if it were still running. The dashboard is started as a
user starts it and asked over its port. Times are milliseconds until the last byte of the answer, and memory is that of
the dashboard's process.
"""

import argparse
import json
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import hatdfed
from hatdfed.runs.records.folder import environment

RUNS, ROUNDS, TIMES, STEADY = 200, 200, 30, 1000
METHODS = ("hat-dfed", "rnd", "d-psgd", "local")


def make_runs(folder: Path) -> Path:
    """Copies of one real run under other names, methods and seeds."""
    first = folder / "first"
    hatdfed.run(method="hat-dfed", dataset="digits", rounds=ROUNDS, out=first)
    for number in range(RUNS):
        method, seed = METHODS[number % len(METHODS)], number // len(METHODS)
        target = folder / "runs" / f"batch-{number // 50}" / f"{method}-seed{seed}"
        shutil.copytree(first, target, ignore=shutil.ignore_patterns("*.png", "checkpoint*"))
        config = target / "config.yaml"
        config.write_text(_renamed(config.read_text(), method, seed, "method: {}\n", "seed: {}\n"))
        results = json.loads((first / "results.json").read_text())
        results |= {"method": method, "seed": seed, "config": {**results["config"], "method": method, "seed": seed}}
        (target / "results.json").write_text(json.dumps(results))
        if number % 20 == 19:
            (target / "results.json").unlink()
    return folder / "runs"


def _renamed(text: str, method: str, seed: int, method_line: str, seed_line: str) -> str:
    text = re.sub(r"^method: .*\n", method_line.format(method), text, flags=re.MULTILINE)
    return re.sub(r"^seed: .*\n", seed_line.format(seed), text, flags=re.MULTILINE)


def milliseconds(address: str) -> float:
    """One question, until its answer is read."""
    began = time.perf_counter()
    with urlopen(address) as answer:  # noqa: S310 (our own address)
        answer.read()
    return 1000 * (time.perf_counter() - began)


def many(address: str) -> dict[str, float]:
    """Median and worst of many questions."""
    times = [milliseconds(address) for _ in range(TIMES)]
    return {"median_ms": round(statistics.median(times), 1), "worst_ms": round(max(times), 1)}


def resident_mib(pid: int) -> float:
    """Memory of the dashboard."""
    (kilobytes,) = re.findall(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return round(int(kilobytes) / 1024, 1)


def measure(address: str, pid: int, runs: Path) -> dict[str, Any]:
    """Every figure of the benchmark."""
    found: dict[str, Any] = {"list_first_later": {"ms": round(milliseconds(f"{address}/"), 1)}}
    found["list"] = many(f"{address}/")
    with urlopen(f"{address}/api/runs") as answer:  # noqa: S310
        cards = json.load(answer)
    ids = [card["id"] for card in cards if card["is_finished"]]
    changed = next(runs.rglob("config.yaml"))
    time.sleep(0.6)  # beyond the moment for which the last walk over the disk is taken again
    changed.touch()
    found["list_after_a_change"] = {"ms": round(milliseconds(f"{address}/"), 1)}
    page, data = f"{address}/runs/{ids[0]}", f"{address}/api/runs/{ids[0]}"
    found |= {"run_page": many(page), "run_series": many(f"{data}/series"), "one_round": many(f"{data}/rounds/150")}
    chosen = "&".join(f"run={run}" for run in ids[:60])
    found["comparison_of_60"] = many(f"{address}/api/compare?{chosen}")
    found["memory"] = _steadiness(address, pid, ids)
    return found


def _steadiness(address: str, pid: int, ids: list[str]) -> dict[str, Any]:
    """Memory after a warm-up, and after many more different questions."""
    sizes = []
    for lap in range(3):
        for number in range(STEADY // 2):
            run = ids[(number + 7 * lap) % len(ids)]
            milliseconds(f"{address}/api/runs/{run}/series")
            milliseconds(f"{address}/api/runs/{run}/rounds/{number % ROUNDS}")
        sizes.append(resident_mib(pid))
    return {"questions_in_a_lap": STEADY, "mib_after_each_lap": sizes}


@contextmanager
def started(runs: Path) -> Iterator[tuple[str, int]]:
    """The dashboard as a user starts it: its address and its process."""
    command = [sys.executable, "-m", "hatdfed", "dashboard", "--runs", str(runs), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603
        assert process.stdout is not None
        try:
            (address,) = re.findall(r"http://[\d.:]+", process.stdout.readline())
            yield address, process.pid
        finally:
            process.send_signal(signal.SIGINT)


def keep(found: dict[str, Any], out: Path | None) -> None:
    """Print what was found with the machine's name, and write it where that is asked for."""
    text = json.dumps({"runs": RUNS, "rounds": ROUNDS, **found, "environment": environment()}, indent=2) + "\n"
    print(text)
    if out:
        out.write_text(text)


def main() -> None:
    """Make the runs, start the dashboard, ask it, write what was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path)
    out = parser.parse_args().out
    with tempfile.TemporaryDirectory() as folder:
        runs = make_runs(Path(folder))
        with started(runs) as (address, _):
            at_once = milliseconds(f"{address}/")  # asked before the runs are read
        with started(runs) as (address, pid):
            time.sleep(2)  # about what a person takes to open the address
            found = {"list_first": {"ms": round(at_once, 1)}, **measure(address, pid, runs)}
    keep(found, out)


if __name__ == "__main__":
    main()
