"""Eight edges that nobody can dial, a large model, slow links that are cut again and again: does every round finish?

python benchmarks/bad_network.py [--quick]     prints figures, writes results/bad-network-cpu.json unless --quick

Every edge reaches coordinator and relay through links of its own, with a limited rate in each direction. All links of
an edge are cut once in every period, one edge after the other. All processes are real ones, with certificates. With
--quick the model, the period and the figures asked of it are smaller.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from contextlib import AsyncExitStack, closing
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from deployment import free_ports, identity
from torch import nn

from hatdfed.deploy.identity.certificates import make_csr, make_key
from hatdfed.deploy.identity.files import IdentityFolder
from hatdfed.deploy.identity.identity_store import IdentityStore, create_identity_store
from hatdfed.deploy.identity.names import relay_id
from hatdfed.runs.records.folder import RunFolder, environment
from hatdfed.server.networks import NETWORKS, Shape
from hatdfed_bench.bad_link import BadLink

AS_PROCESS = "as-process"  # the first argument of a process of the deployment, which has to know the network
MOST_SENT_AGAIN = 0.05


@dataclass(frozen=True)
class World:
    """How bad the network is, and how large the model."""

    width: int  # of the hidden layers: the model has about width² parameters
    mbit_per_second: float  # of every link, in each direction
    cut_seconds: float  # between two cuts of a link
    edges: int = 8
    rounds: int = 3


LARGE = World(width=7040, mbit_per_second=20.0, cut_seconds=60.0)
QUICK = World(width=1400, mbit_per_second=40.0, cut_seconds=5.0)


def settings(world: World, relay_port: int) -> dict[str, Any]:
    """One incoming link for every server, in every round."""
    work = {"images_per_server": 20, "validation_images": 20, "local_passes": 1}
    deploy = {"relay": f"relay-1@127.0.0.1:{relay_port}", "min_servers": world.edges}
    deploy |= {"round_seconds": 900.0, "away_seconds": 60.0}
    shape = {"servers": world.edges, "rounds": world.rounds}
    network = {"dataset": "digits", "network": f"wide-{world.width}", "codec": "float32"}
    learner = {"optimiser": "sgd", "learning_rate": 0.01}  # Adam would need three times the disk and the memory
    return {"method": "one-peer-exponential", **network, **shape, **work, "learner": learner, "deploy": deploy}


def wide(shape: Shape, num_classes: int, width: int) -> nn.Module:
    """A perceptron: many parameters, little work."""
    channels, height, pixels = shape
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(channels * height * pixels, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, num_classes),
    )


def run_as_process(arguments: list[str]) -> None:
    """Be a coordinator, a relay or an edge that knows the network."""
    from hatdfed.cli.app import main as hatdfed

    for world in (LARGE, QUICK):
        NETWORKS.add(f"wide-{world.width}", partial(wide, width=world.width))
    sys.argv = ["hatdfed", *arguments]
    hatdfed()


class Fleet:
    """The processes of one deployment, and the links of its edges."""

    def __init__(self, folder: Path, world: World) -> None:
        self.folder, self.world = folder, world
        self.store = create_identity_store(folder / "ca")
        self.processes: list[subprocess.Popen[bytes]] = []
        self.links: list[list[BadLink]] = []
        self.coordinator_port, self.desk_port, self.relay_port = free_ports(3)

    def start_middle(self) -> subprocess.Popen[bytes]:
        """Start coordinator and relay; returns the coordinator."""
        make_relay_identity(self.store, self.folder / "relay")
        (self.folder / "run.yaml").write_text(yaml.safe_dump(settings(self.world, self.relay_port)), encoding="utf-8")
        relay_place = ("--listen", f"127.0.0.1:{self.relay_port}", "--identity", str(self.folder / "relay"))
        self._start("relay", "relay", *relay_place)
        return self._start(
            "coordinator",
            *("coordinator", str(self.folder / "run.yaml"), "--state", str(self.folder / "run")),
            *("--ca", str(self.folder / "ca"), "--listen", f"127.0.0.1:{self.coordinator_port}"),
            *("--desk", f"127.0.0.1:{self.desk_port}"),
        )

    async def start_edge(self, number: int, stack: AsyncExitStack) -> None:
        """Start an edge behind links of its own."""
        rate = self.world.mbit_per_second * 1e6 / 8
        ports = (self.coordinator_port, self.relay_port)
        links = [await stack.enter_async_context(BadLink(("127.0.0.1", p), bytes_per_second=rate)) for p in ports]
        self.links.append(links)
        known = identity(self.store, self.folder / f"edge-{number}")
        self._start(
            f"edge-{number}",
            *("edge", "--coordinator", f"127.0.0.1:{links[0].port}", "--relay", f"127.0.0.1:{links[1].port}"),
            *("--desk", f"127.0.0.1:{self.desk_port}", "--listen", "", "--identity", str(known.path)),
            *("--store", str(self.folder / f"store-{number}"), "--keep-models", "1", "--threads", "1"),
        )

    async def cut_links(self) -> None:
        """Cut all links of one edge after the other, each once in a period."""
        while True:
            for links in self.links:
                await asyncio.sleep(self.world.cut_seconds / len(self.links))
                for link in links:
                    link.cut()

    def stop(self) -> None:
        """End what still runs."""
        for process in self.processes:
            if process.poll() is None:
                process.terminate()
            process.wait(timeout=30)

    def _start(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("wb") as log:
            command = [sys.executable, __file__, AS_PROCESS, *arguments]
            self.processes.append(subprocess.Popen(command, stdout=log, stderr=log))  # noqa: S603
        return self.processes[-1]


def make_relay_identity(store: IdentityStore, folder: Path) -> None:
    """As `hatdfed ca relay` makes it."""
    key = make_key()
    signed = store.authority.sign(make_csr(key), relay_id("relay-1"), timedelta(days=1))
    IdentityFolder(folder).save(key, signed, store.authority.pem)


async def play(folder: Path, world: World) -> dict[str, Any]:
    """One run, from the first process to the results."""
    fleet = Fleet(folder, world)
    try:
        async with AsyncExitStack() as stack:
            coordinator = fleet.start_middle()
            for number in range(world.edges):
                await fleet.start_edge(number, stack)
            began = time.monotonic()
            cutting = asyncio.ensure_future(fleet.cut_links())
            while coordinator.poll() is None:
                await asyncio.sleep(0.5)
            cutting.cancel()
            links = [link for those in fleet.links for link in those]
            figures = {
                "seconds": round(time.monotonic() - began, 1),
                "exit_code": coordinator.returncode,
                "connections_cut": sum(link.cuts for link in links),
                "link_gigabytes": round(sum(link.forwarded for link in links) / 1e9, 2),
            }
    finally:
        fleet.stop()
    return {**asdict(world), **figures, **read_records(folder / "run")}


def read_records(folder: Path) -> dict[str, Any]:
    """Read from the run folder what arrived, and what it cost."""
    with closing(RunFolder(folder).read()) as database:
        rounds, links, ledger = (database.records(table) for table in ("rounds", "links", "ledger"))
    sent = [row for row in ledger if row["cause"] == "link"]
    bits, again = sum(row["bits"] for row in sent), sum(row["bits_again"] for row in sent)
    return {
        "rounds_played": len(rounds),
        "round_seconds": [round(row["seconds"], 1) for row in rounds],
        "links": len(links),
        "links_delivered": sum(row["delivered"] for row in links),
        "megabytes_a_model": round((bits - again) / 8e6 / max(1, sum(row["hops"] for row in sent)), 1),
        "sent_again": round(again / max(1.0, bits - again), 4),
        "relayed_joules": round(sum(row["joules"] for row in sent if row["hops"] == 2), 1),
        "link_joules": round(sum(row["joules"] for row in sent), 1),
    }


def check(figures: dict[str, Any], world: World) -> list[str]:
    """Say what is not as it must be."""
    wrong = []
    if figures["rounds_played"] < world.rounds or figures["links_delivered"] < figures["links"]:
        wrong.append("a round did not finish, or a model did not arrive")
    if world is LARGE and figures["sent_again"] > MOST_SENT_AGAIN:
        wrong.append(f"more than {MOST_SENT_AGAIN:.0%} of the bytes were sent twice")
    if not figures["relayed_joules"]:
        wrong.append("the relay's hops are not in the ledger")
    return wrong


def main() -> None:
    """Play, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--keep", type=Path, help="folder for logs and records, which are deleted otherwise")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("results") / "bad-network-cpu.json")
    arguments = parser.parse_args()
    world = QUICK if arguments.quick else LARGE
    with tempfile.TemporaryDirectory() as name:
        figures = asyncio.run(play(arguments.keep or Path(name), world))
    for key, value in figures.items():
        print(f"{key:20} {value}")
    if not arguments.quick:
        arguments.out.write_text(json.dumps({"machine": environment(), **figures}, indent=1) + "\n", encoding="utf-8")
    if wrong := check(figures, world):
        raise SystemExit("; ".join(wrong))


if __name__ == "__main__":
    if sys.argv[1:2] == [AS_PROCESS]:
        run_as_process(sys.argv[2:])
    else:
        main()
