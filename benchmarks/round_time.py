"""Simulated seconds of a round against those of a real deployment whose edges send at limited rates.

python benchmarks/round_time.py             as root, with iproute2; prints figures, writes results/round-time-cpu.json
python benchmarks/round_time.py --quick     one case with few rounds, prints only

Every edge is a process in a network namespace of its own, and `tc` limits what it sends, edge by edge. The coordinator
computes `simulated_seconds` from profiles with the same rates and from the seconds that a sample takes on this machine,
which are measured before; `seconds` is the time that the round really took. The first round of a run is left out: edges
make their connections in it. Data of devices are drawn where they are trained on, so uploads take no time here, and
this kernel may have no way to delay packets, so latency is 0.
"""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from deployment import identity
from torch import nn

from hatdfed.deploy.identity.identity_store import create_identity_store
from hatdfed.runs.records.folder import RunFolder, environment
from hatdfed.server.networks import NETWORKS, Shape

AS_PROCESS = "as-process"  # the first argument of a process of the deployment, which has to know the network
WIDTH = 600  # of the hidden layers: a model of 0.4 million numbers, 13 Mbit
SAMPLES = 20
PORT = 21_000
MOST_SECONDS = 600.0


@dataclass(frozen=True)
class Case:
    """A method, and the rates at which its edges send, in turn."""

    method: str
    mbit_per_second: tuple[float, ...]
    edges: int = 4
    rounds: int = 4


# So slow that what a deployment takes besides, such as connections, commits and reports, is a small part.
CASES = (
    Case("one-peer-exponential", (1.0,)),
    Case("sgp", (1.0,)),  # two receivers share an uplink
    Case("sgp", (4.0, 1.0)),  # and the slowest decides
    Case("full", (2.0,)),
)


def wide(shape: Shape, num_classes: int) -> nn.Module:
    """A perceptron: many parameters, little work."""
    channels, height, width = shape
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(channels * height * width, WIDTH),
        nn.ReLU(),
        nn.Linear(WIDTH, WIDTH),
        nn.ReLU(),
        nn.Linear(WIDTH, num_classes),
    )


def run_as_process(arguments: list[str]) -> None:
    """Be a coordinator or an edge that knows the network."""
    from hatdfed.cli.app import main as hatdfed

    NETWORKS.add("wide", wide)
    sys.argv = ["hatdfed", *arguments]
    hatdfed()


def measure_sample_seconds() -> float:
    """Seconds of one sample and pass on this machine, with one thread."""
    torch.set_num_threads(1)
    module, x = wide((1, 8, 8), 10), torch.rand(SAMPLES, 1, 8, 8)
    taken = []
    for _ in range(5):
        start = time.perf_counter()
        torch.autograd.grad(module(x).square().mean(), list(module.parameters()))
        taken.append((time.perf_counter() - start) / SAMPLES)
    return min(taken)


def settings(case: Case, sample_seconds: float) -> dict[str, Any]:
    """Profiles with the very rates that the edges have."""
    profiles = [
        {
            "name": f"uplink-{rate:g}",
            "idle_watts": 1.0,
            "training_watts": 1.0,
            "sample_seconds": sample_seconds,
            "upload_mbit_per_second": 1e9,
            "uplink_mbit_per_second": rate,
            "latency_seconds": 1e-9,
        }
        for rate in case.mbit_per_second
    ]
    return {
        "method": case.method,
        "dataset": "digits",
        "network": "wide",
        "codec": "float32",
        "servers": case.edges,
        "rounds": case.rounds,
        "images_per_server": 100,
        "samples_per_round": SAMPLES,
        "device_online_probability": 1.0,
        "local_passes": 1,
        "validation_images": 20,
        "probe_size": 4,
        "learner": {"optimiser": "sgd", "learning_rate": 0.01},
        "machines": {"profiles": profiles},
        "deploy": {"min_servers": case.edges, "gather_seconds": 120.0, "away_seconds": 60.0},
    }


class Network:
    """Namespaces with a switch between them: the coordinator in the first, an edge in each of the others."""

    def __init__(self, places: int) -> None:
        self._names = [f"hrt{os.getpid()}-{place}" for place in range(places)]
        self._switch = f"hrt{os.getpid()}-switch"

    def __enter__(self) -> Network:
        _run("ip", "netns", "add", self._switch)
        _run("ip", "-n", self._switch, "link", "add", "bridge", "type", "bridge")
        _run("ip", "-n", self._switch, "link", "set", "bridge", "up")
        for place, name in enumerate(self._names):
            _run("ip", "netns", "add", name)
            _run("ip", "-n", name, "link", "set", "lo", "up")
            ends = ("type", "veth", "peer", "name", "eth0", "netns", name)
            _run("ip", "link", "add", f"port{place}", "netns", self._switch, *ends)
            _run("ip", "-n", self._switch, "link", "set", f"port{place}", "master", "bridge", "up")
            _run("ip", "-n", name, "addr", "add", f"{address(place)}/24", "dev", "eth0")
            _run("ip", "-n", name, "link", "set", "eth0", "up")
        return self

    def __exit__(self, *_: object) -> None:
        for name in (*self._names, self._switch):
            with suppress(subprocess.CalledProcessError):
                _run("ip", "netns", "del", name)

    def limit(self, place: int, mbit_per_second: float) -> None:
        """Limit what is sent from there."""
        limits = ("rate", f"{mbit_per_second}mbit", "burst", "16kb", "latency", "100ms")
        _run("tc", "-n", self._names[place], "qdisc", "replace", "dev", "eth0", "root", "tbf", *limits)

    def start(self, place: int, log: Path, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a process of the deployment there."""
        inside = ["ip", "netns", "exec", self._names[place], sys.executable, __file__, AS_PROCESS]
        with log.open("wb") as file:
            return subprocess.Popen([*inside, *arguments], stdout=file, stderr=file)  # noqa: S603


def address(place: int) -> str:
    """Of a namespace."""
    return f"10.79.0.{10 + place}"


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)  # noqa: S603


def play(folder: Path, case: Case, sample_seconds: float) -> dict[str, Any]:
    """One run of real processes, and both times of its rounds."""
    store, run = create_identity_store(folder / "ca"), folder / "run"
    (folder / "run.yaml").write_text(yaml.safe_dump(settings(case, sample_seconds)), encoding="utf-8")
    processes: list[subprocess.Popen[bytes]] = []
    with Network(1 + case.edges) as network:
        place = ("--listen", f"{address(0)}:{PORT}", "--desk", f"{address(0)}:{PORT - 1}")
        known = ("--state", str(run), "--ca", str(folder / "ca"))
        middle = network.start(0, folder / "coordinator.log", "coordinator", str(folder / "run.yaml"), *known, *place)
        processes.append(middle)
        try:
            for number in range(case.edges):
                own = identity(store, folder / f"edge-{number}")
                network.limit(1 + number, case.mbit_per_second[number % len(case.mbit_per_second)])
                where = ("--coordinator", f"{address(0)}:{PORT}", "--listen", f"{address(1 + number)}:{PORT}")
                files = ("--identity", str(own.path), "--store", str(folder / f"store-{number}"), "--threads", "1")
                log = folder / f"edge-{number}.log"
                processes.append(network.start(1 + number, log, "edge", *where, *files))
                _wait_for_member(run / "journal.sqlite", number + 1, middle)  # so that it gets this number
            middle.wait(timeout=MOST_SECONDS)
        finally:
            for process in processes:
                if process.poll() is None:
                    process.terminate()
                process.wait(timeout=30)
    with closing(RunFolder(run).read()) as database:
        rounds = database.records("rounds")[1:]
    real, simulated = ([row[name] for row in rounds] for name in ("seconds", "simulated_seconds"))
    error = [100 * (one / other - 1) for one, other in zip(simulated, real, strict=True)]
    return {
        **asdict(case),
        "sample_seconds": sample_seconds,
        "links": [row["links"] for row in rounds],
        "seconds": real,
        "simulated_seconds": simulated,
        "error_percent": 100 * (statistics.fmean(simulated) / statistics.fmean(real) - 1),
        "worst_error_percent": max(error, key=abs),
    }


def _wait_for_member(journal: Path, count: int, middle: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 120
    while _count_members(journal) < count:
        if time.monotonic() > end or middle.poll() is not None:
            raise SystemExit(f"Edge {count - 1} did not join.")
        time.sleep(0.2)


def _count_members(journal: Path) -> int:
    with suppress(sqlite3.Error), closing(sqlite3.connect(f"file:{journal}?mode=ro", uri=True)) as connection:
        (count,) = connection.execute("SELECT COUNT(*) FROM members").fetchone()
        return int(count)
    return 0


def main() -> None:
    """Measure all cases, print and write them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one case, nothing is written")
    parser.add_argument("--keep", type=Path, help="folder for logs and records, which are deleted otherwise")
    arguments = parser.parse_args()
    sample_seconds, rows = measure_sample_seconds(), []
    for case in CASES[:1] if arguments.quick else CASES:
        with tempfile.TemporaryDirectory() as name:
            rows.append(play(arguments.keep or Path(name), case, sample_seconds))
        print(json.dumps(rows[-1]), flush=True)
    if not arguments.quick:
        place = Path(__file__).parent / "results/round-time-cpu.json"
        place.write_text(json.dumps({"environment": environment(), "cases": rows}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:2] == [AS_PROCESS]:
        run_as_process(sys.argv[2:])
    else:
        main()
