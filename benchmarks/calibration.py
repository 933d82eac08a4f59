"""What a calibrated profile charges for training on a GPU, against the GPU's energy counter in trainings that followed.

A profile is made for every network and batch size, by the code of `hatdfed calibrate`, with rounds of three batches.
Then an edge's program trains on other data, in rounds of one to five batches, in windows of a few seconds that take
turns with those of the other batch sizes.
The ledger's figure for these rounds is compared with what NVML's counter went up by. Both are joules above idle power,
which is measured before this process uses the GPU, as `hatdfed calibrate` does it. For each network, one profile is
also compared with what a stacked fleet of several servers takes on the same GPU.

    python benchmarks/calibration.py --out benchmarks/results/calibration-h200.json

The three batch sizes of a network are written to the file when they are measured. A command that was interrupted goes
on behind them: give it the same arguments once more. `--only fashion-mnist:16,vit-tiny:16` measures these cells alone,
and replaces them if the file has them. Nothing else may use the GPU meanwhile. The defaults take about six minutes.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from hatdfed.core.energy.energy_model import Cause, EnergyPrices
from hatdfed.core.round import RoundReport
from hatdfed.data.datasets.base import Dataset
from hatdfed.meters.base import Reading, metered
from hatdfed.meters.choose import measure_idle
from hatdfed.meters.nvml import NvmlMeter, import_nvml, open_nvml
from hatdfed.runs.calibration import Cost, TrainingRounds, Works, make_profile, measure_cost
from hatdfed.runs.records.folder import environment
from hatdfed.setup.build.placement import Placement
from hatdfed.setup.build.program import make_actors, make_program
from hatdfed.setup.build.simulation import make_batch
from hatdfed.setup.config import Config
from hatdfed_bench.machine import synchronise
from hatdfed_bench.workload import PASSES, WORKLOADS, Workload

RESULT = Path(__file__).parent / "results" / "calibration-h200.json"
NETWORKS = ("fashion-mnist", "resnet-18-group-norm", "vit-tiny")  # workloads
BATCHES = (16, 60, 256)
LENGTHS = (1, 3, 2, 5)  # batches of a held-out round's data
CALIBRATED_LENGTH = 3  # batches of a round's data while calibrating
HELD_OUT_SEED = 1  # of samples and of the initial model; those of calibration have seed 0


class Asked(NamedTuple):
    """How long everything is measured."""

    servers: int  # of the stacked fleet
    repeats: int
    seconds: float
    limit: float
    windows: int
    window_seconds: float
    warm_up: float


class RecordingNvml:
    """The module pynvml, which remembers every value of an energy counter."""

    def __init__(self, nvml: Any, *, is_alone: bool = False) -> None:
        """`is_alone`: nobody else uses the GPU, whatever the driver says about processes."""
        self._nvml, self._is_alone = nvml, is_alone
        self._values: list[tuple[float, int]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._nvml, name)

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: Any) -> int:  # noqa: N802 (NVML's name)
        """Millijoules since the driver was loaded."""
        value = int(self._nvml.nvmlDeviceGetTotalEnergyConsumption(handle))
        if [each for _, each in self._values[-2:]] == [value, value]:
            self._values.pop()  # of many readings of the same value, the first and the last
        self._values.append((round(time.monotonic(), 4), value))
        return value

    def nvmlDeviceGetComputeRunningProcesses(self, handle: Any) -> Sequence[Any]:  # noqa: N802 (NVML's name)
        """Who uses the GPU."""
        return [] if self._is_alone else self._nvml.nvmlDeviceGetComputeRunningProcesses(handle)

    def take(self) -> list[tuple[float, int]]:
        """Seconds and millijoules of every reading since the last call."""
        values, self._values = self._values, []
        return values


class Bench(NamedTuple):
    """The GPU, its meter, and what the idle GPU took."""

    device: torch.device
    meter: NvmlMeter
    recorder: RecordingNvml
    idle: Reading
    notes: dict[str, Any]  # on the idle GPU, for the file


class HeldOut:
    """Rounds of an edge's training, of other lengths and on other data than those of calibration."""

    def __init__(self, config: Config, dataset: Dataset, prices: EnergyPrices, device: torch.device) -> None:
        self._size, self._passes, self._prices = config.batch_size, config.local_passes, prices
        self._rounds = TrainingRounds(config, dataset, make_program(config, dataset), device, seed=HELD_OUT_SEED)
        self._lengths = cycle(LENGTHS)

    def play(self) -> tuple[int, float]:
        """One round; returns its samples and the joules that the ledger has for it."""
        samples = self._rounds.play(self._size * next(self._lengths)) // self._passes
        return samples, self._prices.training(0, 0, samples).joules


class Stacked:
    """Rounds of a stacked fleet, in which every server is charged by the same profile."""

    def __init__(self, config: Config, dataset: Dataset, device: torch.device) -> None:
        batch = make_batch([config], dataset, Placement("stacked", device.type), ["run"])
        (self._coordinator,), self._fleets = batch.coordinators, batch.fleets
        self._state = self._coordinator.start(np.zeros(config.servers))
        self._device = device

    def play(self) -> tuple[int, float]:
        """One round; returns the samples that all servers trained on and the joules that the ledger has for that."""
        plan = self._coordinator.plan(self._state)
        report: RoundReport = self._fleets.run_rounds({0: plan})[0]
        self._state, _ = self._coordinator.learn(self._state, plan, report)
        synchronise(self._device)
        samples = sum(told.num_samples for told in report.servers if told is not None)
        return samples, math.fsum(row.joules for row in report.energy if row.cause == Cause.TRAINING)


Play = Callable[[], tuple[int, float]]


def main(arguments: Sequence[str] | None = None, nvml: Any = None) -> None:
    """Measure what the file does not have yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", default=",".join(NETWORKS), help=f"workloads of {', '.join(WORKLOADS)}")
    parser.add_argument("--batches", default=",".join(map(str, BATCHES)))
    parser.add_argument("--servers", type=int, default=20, help="servers of the stacked fleet; 0: none")
    parser.add_argument("--only", default="", help="cells to measure, anew if need be, such as fashion-mnist:16")
    parser.add_argument("--repeats", type=int, default=4, help="windows of a calibration, at least")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of each")
    parser.add_argument("--limit", type=float, default=10.0, help="seconds in which further windows are measured")
    parser.add_argument("--windows", type=int, default=5, help="windows of held-out training")
    parser.add_argument("--window-seconds", type=float, default=2.5, help="length of each")
    parser.add_argument("--idle-seconds", type=float, default=8.0)
    parser.add_argument("--warm-up", type=float, default=5.0, help="seconds of training before the first window")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument(
        "--alone",
        action="store_true",
        help="nobody else uses the GPU: do not ask NVML, which may not know in containers",
    )
    parser.add_argument("--out", type=Path, default=RESULT)
    given = parser.parse_args(arguments)
    asked = Asked(
        given.servers, given.repeats, given.seconds, given.limit, given.windows, given.window_seconds, given.warm_up
    )
    recorder = RecordingNvml(nvml or import_nvml(), is_alone=given.alone)
    bench = open_bench(recorder, torch.device(given.device), given.idle_seconds)
    known = json.loads(given.out.read_text(encoding="utf-8")) if given.out.exists() else describe(bench, given)
    wanted = list_wanted(given, known)
    sizes = next((sizes for sizes in wanted.values() if sizes), BATCHES)
    warm_up(bench, WORKLOADS[next(iter(wanted))], sizes[-1], asked)
    for name, sizes in wanted.items():
        if sizes:
            keep(known["cells"], measure_cells(bench, WORKLOADS[name], sizes, asked))
            write(given.out, known)
    for name in wanted if asked.servers and not given.only else ():
        if all(row["network"] != name for row in known["stacked"]):
            known["stacked"].append(measure_stacked(bench, WORKLOADS[name], asked, known["cells"]))
            write(given.out, known)


def list_wanted(given: argparse.Namespace, known: dict[str, Any]) -> dict[str, list[int]]:
    """The batch sizes to measure, by network: those that are named, or all that the file does not have yet."""
    if given.only:
        named: dict[str, list[int]] = {}
        for cell in given.only.split(","):
            name, _, size = cell.partition(":")
            if name not in WORKLOADS or not size.isdigit():
                raise SystemExit(f"--only names {cell!r}, but a cell is a network and a batch size: fashion-mnist:16.")
            named.setdefault(name, []).append(int(size))
        return named
    done = {(cell["network"], cell["batch"]) for cell in known["cells"]}
    sizes = [int(size) for size in given.batches.split(",")]
    return {name: [size for size in sizes if (name, size) not in done] for name in given.networks.split(",")}


def keep(cells: list[dict[str, Any]], measured: list[dict[str, Any]]) -> None:
    """Replace cells that were measured anew, add the others, and sort all by network and batch size."""
    anew = {(cell["network"], cell["batch"]) for cell in measured}
    kept = [cell for cell in cells if (cell["network"], cell["batch"]) not in anew]
    names = [*dict.fromkeys([*NETWORKS, *(cell["network"] for cell in [*kept, *measured])])]
    cells[:] = sorted([*kept, *measured], key=lambda cell: (names.index(cell["network"]), cell["batch"]))


def open_bench(recorder: RecordingNvml, device: torch.device, idle_seconds: float) -> Bench:
    """Measure the idle GPU before this process uses it."""
    meter = open_nvml(nvml=recorder)
    recorder.take()
    idle = measure_idle(meter, idle_seconds)
    counters = recorder.take()
    print(f"idle: {idle.gross_watts:.1f} W", flush=True)
    return Bench(device, meter.with_idle(idle.gross_watts), recorder, idle, idle._asdict() | {"counter": counters})


def warm_up(bench: Bench, workload: Workload, size: int, asked: Asked) -> None:
    """Train for some seconds, then tell what the GPU takes while a process holds it and does nothing."""
    config, dataset = make_settings(workload, size), workload.dataset()
    work = Works(config, dataset, make_program(config, dataset), bench.device.type)
    _work_for(work.train, asked.warm_up)
    held = measure_idle(bench.meter, min(3.0, asked.window_seconds))
    bench.notes["watts_while_held"] = held.gross_watts  # how much of what is above idle is not for computing
    print(f"idle, but held by a process: {held.gross_watts:.1f} W", flush=True)


def describe(bench: Bench, given: argparse.Namespace) -> dict[str, Any]:
    """The machine, and how it was measured."""
    name = torch.cuda.get_device_name() if bench.device.type == "cuda" else environment()["processor"]
    asked = {key: value for key, value in vars(given).items() if key != "out"}
    return {"machine": {"name": name, **environment()}, "asked": asked, "cells": [], "stacked": []}


def write(path: Path, known: dict[str, Any]) -> None:
    """Write all that is known."""
    path.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")


def make_settings(workload: Workload, size: int, *, length: int = 1, servers: int = 2, profile: Any = None) -> Config:
    """Settings of a run with so many batches of that size, and with calibrated machines, if a profile is given."""
    settings: dict[str, Any] = {"batch_size": size, "samples_per_round": length * size}
    if profile is not None:
        settings |= {"energy": {"source": "calibrated"}, "machines": {"profiles": [profile]}}
    return workload.config(servers, rounds=10_000, **settings)


def measure_cells(bench: Bench, workload: Workload, sizes: Sequence[int], asked: Asked) -> list[dict[str, Any]]:
    """Calibrate with each batch size; then train in windows that take turns."""
    dataset, unseen = workload.dataset(), workload.dataset(HELD_OUT_SEED)
    cells: list[dict[str, Any]] = []
    trainings = []
    for size in sizes:
        config = make_settings(workload, size, length=CALIBRATED_LENGTH)
        works = Works(config, dataset, make_program(config, dataset), bench.device.type)
        bench.recorder.take()
        cost = measure_cost(works.train, bench.meter, repeats=asked.repeats, seconds=asked.seconds, limit=asked.limit)
        about = f"{workload.network} on {workload.name}, batches of {size}, {bench.device.type}"
        profile = make_profile("calibrated", about, cost, bench.idle).model_dump(mode="json")
        cells.append(
            {
                "network": workload.name,
                "batch": size,
                "passes": PASSES,
                "calibrated_length": CALIBRATED_LENGTH,
                "uncertainty": cost.uncertainty,
                "rhythms": {name: rhythm._asdict() for name, rhythm in bench.meter.rhythms.items()},
                "idle": bench.notes,
                "profile": {key: profile[key]["value"] for key in ("idle_watts", "training_watts", "sample_seconds")},
                "calibration": list_windows(cost),
                "calibration_counter": bench.recorder.take(),
                "held_out": [],
            }
        )
        prices = make_actors(make_settings(workload, size, profile=profile), unseen)[0].prices
        trainings.append(HeldOut(config, unseen, prices, bench.device))
    for _ in range(asked.windows):
        for cell, training in zip(cells, trainings, strict=True):
            cell["held_out"].append(measure_window(bench, training.play, asked.window_seconds))
    for cell in cells:
        tell(cell, "held_out")
    return cells


def measure_stacked(bench: Bench, workload: Workload, asked: Asked, cells: list[dict[str, Any]]) -> dict[str, Any]:
    """A whole stacked run against what its ledger charges for training, with the profile of the middle batch size."""
    own = sorted((cell for cell in cells if cell["network"] == workload.name), key=lambda cell: cell["batch"])
    cell = own[len(own) // 2]
    size = cell["batch"]
    figures = {key: {"value": value, "how": "measured"} for key, value in cell["profile"].items()}
    rates = {"upload_mbit_per_second": 100.0, "uplink_mbit_per_second": 100.0, "latency_seconds": 0.005}
    config = make_settings(workload, size, servers=asked.servers, profile={"name": "calibrated", **figures, **rates})
    fleet = Stacked(config, workload.dataset(HELD_OUT_SEED), bench.device)
    fleet.play()  # makes what later rounds use again
    windows = [measure_window(bench, fleet.play, asked.window_seconds) for _ in range(min(3, asked.windows))]
    row = {"network": workload.name, "batch": size, "servers": asked.servers, "idle": bench.notes, "windows": windows}
    tell(row, "windows")
    return row


def measure_window(bench: Bench, play: Play, seconds: float) -> dict[str, Any]:
    """Rounds in one window, after some that are not measured."""
    _work_for(lambda: play()[0], seconds / 10)
    bench.recorder.take()
    rounds = []
    with metered(bench.meter) as readings:
        began = time.perf_counter()
        while (passed := time.perf_counter() - began) < seconds:
            rounds.append(play())
    return {
        "samples": sum(samples for samples, _ in rounds),
        "rounds": len(rounds),
        "seconds": passed,
        "charged_joules": math.fsum(joules for _, joules in rounds),
        "reading": readings[0]._asdict(),
        "counter": bench.recorder.take(),
    }


def list_windows(cost: Cost) -> list[dict[str, Any]]:
    """The windows of a calibration."""
    return [each._asdict() | {"reading": each.reading and each.reading._asdict()} for each in cost.windows]


def tell(row: dict[str, Any], windows: str) -> None:
    """Print one comparison."""
    charged = math.fsum(each["charged_joules"] for each in row[windows])
    measured = math.fsum(each["reading"]["joules"] for each in row[windows])
    what = f"{row['network']:22} batch {row['batch']:4} {row.get('servers', 1):4} servers"
    ratio = charged / measured if measured else math.nan
    print(f"{what}  charged {charged:8.1f} J, measured {measured:8.1f} J: {ratio:.3f}", flush=True)


def _work_for(work: Callable[[], object], seconds: float) -> None:
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        work()


if __name__ == "__main__":
    main()
