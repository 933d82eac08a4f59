"""One run of 200 servers in 1, 2 and 4 shards on Ray: seconds a round, traffic between shards, memory of a shard.

python benchmarks/shards.py [--servers 200] [--rounds 6] [--out benchmarks/results/shards.json]

It wants a quiet machine. Every shard is a process with one thread of torch. All of them on one machine share its cores,
so that 4 shards on 2 cores show what shards cost, not what they gain. One fleet in this process is the first row. Every
way must draw the same links and spend the same joules.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from hatdfed.core import loop
from hatdfed.core.fleet import SeparateFleets
from hatdfed.data.datasets import load_dataset
from hatdfed.fleets.sharded.fleet import ShardedFleet
from hatdfed.fleets.sharded.orders import even_bounds
from hatdfed.runs.records.folder import environment
from hatdfed.setup.build.placement import Placement
from hatdfed.setup.build.ray_shards import RayShards
from hatdfed.setup.build.simulation import make_batch
from hatdfed.setup.build.world import make_world
from hatdfed.setup.config import Config
from hatdfed.setup.layers import resolve

IMAGES = {"side": 28, "channels": 1, "train": 4000, "validation": 300, "test": 100}
SHARDS = (0, 1, 2, 4)  # 0: one fleet in this process
CODECS = ("float32", "int8")
LINKS_A_SERVER = 4


def settings(servers: int, rounds: int, codec: str) -> Config:
    """hat-dfed with about four links a server, on images that need no download."""
    fixed = {"method": "hat-dfed", "dataset": "synthetic", "dataset_options": IMAGES, "network": "small-cnn"}
    sizes = {"servers": servers, "rounds": rounds, "validation_images": 300}
    return resolve({**fixed, **sizes, "codec": codec, "link_share": LINKS_A_SERVER / (servers - 1)})


def measure(config: Config, shards: int) -> tuple[dict[str, Any], list[Any]]:
    """A row of the table, and what every way must agree in."""
    dataset = load_dataset("synthetic", options=IMAGES)
    batch = make_batch([config], dataset, Placement("stacked", "cpu"), names=["benchmark"])
    coordinator, fleet = batch.simulations[0]
    began, carrier = time.perf_counter(), None
    if shards:
        carrier = RayShards(config, dataset, even_bounds(config.servers, shards), "cpu", None)
        fleet = ShardedFleet(carrier, coordinator.prices, make_world(config, dataset).test)
    started, ends, posted, played = time.perf_counter(), [], [], []

    def watch(_: Any, record: Any) -> None:
        ends.append(time.perf_counter())
        posted.append(getattr(fleet, "posted_bytes", 0))
        played.append((record.draw.topology, sum(row.joules for row in record.report.energy)))

    try:
        start = coordinator.start(fleet.validation_accuracy())
        loop.run([loop.RunInPlay(coordinator, start, config.rounds, [watch])], SeparateFleets(fleet))
        memory = [] if carrier is None else carrier.memory()
    finally:
        if carrier is not None:
            carrier.close()
    seconds = [after - before for before, after in pairwise(ends)]  # the first round warms up
    crossing = statistics.mean(posted)
    row = {
        "shards": shards,
        "codec": config.codec,
        "seconds_to_start": round(started - began, 2),
        "seconds_a_round": round(statistics.median(seconds), 4),
        "links_a_round": statistics.mean(topology.num_links for topology, _ in played),
        "megabytes_between_shards_a_round": round(crossing / 1e6, 3),
        "float32_models_between_shards_a_round": round(crossing / (4 * fleet.num_params), 1),
        "own_megabytes_of_a_shard": _most(memory, "own"),
        "peak_megabytes_with_shared": _most(memory, "peak_with_shared"),  # letters lie in memory that all share
        "parameters": fleet.num_params,
    }
    return row, played


def _most(memory: list[dict[str, int]], name: str) -> int | None:
    return round(max(each[name] for each in memory) / 1e6) if memory else None


def main() -> None:
    """Measure every way, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--servers", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for codec in CODECS:
        config = settings(arguments.servers, arguments.rounds, codec)
        whole: list[Any] | None = None
        for shards in SHARDS:
            row, played = measure(config, shards)
            whole = whole or played
            assert played == whole, f"{shards} shards drew other links or spent other joules"
            rows.append(row)
            print(json.dumps(row), flush=True)
    if arguments.out is not None:
        found = {
            "machine": environment(),
            "load_average": os.getloadavg(),
            "servers": arguments.servers,
            "rounds": arguments.rounds,
            "rows": rows,
        }
        arguments.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
