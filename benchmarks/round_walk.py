"""How many files a round goes through: modules of hatdfed with a function that runs between two rounds' ends.

python benchmarks/round_walk.py [--out benchmarks/results/round-walk.json]

Every way plays a few rounds of a small run and looks at the third. `hatdfed run` plays one run, a comparison four side
by side, an experiment of the paper its own runs by its own command, a deployment a coordinator and three edges in one
process, over TLS. Files of generated code are not counted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hatdfed
from hatdfed.core import loop
from hatdfed.deploy.coordinator.process import CoordinatorOptions, CoordinatorProcess
from hatdfed.deploy.coordinator.settings import DeploySettings
from hatdfed.deploy.edge.edge import Edge, EdgeOptions
from hatdfed.deploy.edge.setup import make_edge_setup
from hatdfed.deploy.edge.store import EdgeStore
from hatdfed.deploy.identity.authority import LIFETIME
from hatdfed.deploy.identity.certificates import make_csr, make_key
from hatdfed.deploy.identity.files import IdentityFolder
from hatdfed.deploy.identity.identity_store import create_identity_store
from hatdfed.deploy.identity.names import edge_id
from hatdfed.deploy.transport.endpoints import Endpoints
from hatdfed.runs.records.folder import environment
from hatdfed.setup.build.placement import Placement
from hatdfed.setup.layers import resolve
from hatdfed.sweeps.batches import PlayOptions
from hatdfed_paper.plan import Scale
from hatdfed_paper.play import play_missing
from hatdfed_paper.results import locked
from hatdfed_paper.todo import todo

ROOT = Path(hatdfed.__file__).parent
ROUNDS, LOOKED_AT = 4, 2
SMALL: dict[str, Any] = {
    "servers": 4,
    "rounds": ROUNDS,
    "images_per_server": 40,
    "samples_per_round": 12,
    "validation_images": 40,
}


class Walk:
    """Collects the modules whose functions run, in all threads, from one round's end to the next one's."""

    def __init__(self) -> None:
        self.modules: set[str] = set()
        self._is_open = False

    def at_round(self, t: int) -> None:
        """Round t has ended."""
        self._is_open = t == LOOKED_AT - 1

    def profile(self, frame: Any, event: str, argument: Any) -> None:
        """For `sys.setprofile`."""
        if self._is_open and event == "call":
            path = Path(frame.f_code.co_filename)
            if path.is_relative_to(ROOT) and not path.stem.endswith(("_pb2", "_pb2_grpc")):
                self.modules.add(str(path.relative_to(ROOT)))


@contextmanager
def watched(walk: Walk) -> Iterator[None]:
    """Every run's rounds are told to `walk`, and all threads are watched."""
    real = loop.run

    def run(runs: Any, fleets: Any) -> Any:
        told = [each._replace(sinks=[*each.sinks, lambda _, record: walk.at_round(record.t)]) for each in runs]
        return real(told, fleets)

    modules = [module for module in sys.modules.values() if getattr(module, "run", None) is real]
    for module in modules:
        vars(module)["run"] = run
    threading.setprofile(walk.profile)
    sys.setprofile(walk.profile)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        for module in modules:
            vars(module)["run"] = real


def one_run(folder: Path) -> None:
    """What `hatdfed run` does."""
    hatdfed.run(SMALL, out=folder / "run")


def comparison(folder: Path) -> None:
    """What `hatdfed compare` does, in this process."""
    hatdfed.compare(["hat-dfed", "rnd"], seeds=2, jobs=1, out=folder / "runs", **SMALL)


def paper_experiment(folder: Path) -> None:
    """What `hatdfed paper run` does, in this process."""
    scale = Scale(
        "small", ("digits",), seeds=2, servers=(4,), common={k: v for k, v in SMALL.items() if k != "servers"}
    )
    with locked(folder):
        how = PlayOptions(Placement("stacked", "cpu"))
        play_missing(todo(["scalability"], scale, folder), processes=1, how=how)


def deployment(folder: Path) -> None:
    """What `hatdfed coordinator` and three times `hatdfed edge` do, on loopback."""
    asyncio.run(_deployed(folder))


async def _deployed(folder: Path) -> None:
    config = resolve({**SMALL, "servers": 3})
    identities = create_identity_store(folder / "ca", LIFETIME)
    options = CoordinatorOptions(folder / "run", "127.0.0.1:0", Endpoints(identities.identity), identities)
    process = CoordinatorProcess(config, DeploySettings(), options)
    played = asyncio.ensure_future(process.serve())
    while not process.port and not played.done():
        await asyncio.sleep(0.01)
    edges = []
    for number in range(config.servers):
        key, name = make_key(), f"edge-{number}"
        identity = IdentityFolder(folder / name)
        certificate = identities.authority.sign(make_csr(key), edge_id(name), identities.lifetime)
        identity.save(key, certificate, identities.authority.pem)
        endpoints = Endpoints(identity, edge_id(name))
        at = EdgeOptions(f"127.0.0.1:{process.port}", "127.0.0.1:0", "")
        edge = Edge(at, endpoints, EdgeStore(folder / "stores" / name), make_edge_setup)
        edges.append(asyncio.ensure_future(edge.serve()))
    await asyncio.gather(played, *edges)


WAYS: dict[str, Callable[[Path], None]] = {
    "run": one_run,
    "compare": comparison,
    "paper run": paper_experiment,
    "deployment": deployment,
}


def main() -> None:
    """Play every way, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    found = {}
    for name, play in WAYS.items():
        walk = Walk()
        with tempfile.TemporaryDirectory() as folder, watched(walk):
            play(Path(folder))
        found[name] = sorted(walk.modules)
        print(f"{len(walk.modules):3} files  {name}")
    if arguments.out is not None:
        rows = {name: {"files": len(modules), "modules": modules} for name, modules in found.items()}
        arguments.out.write_text(
            json.dumps({"machine": environment(), "ways": rows}, indent=1) + "\n", encoding="utf-8"
        )


if __name__ == "__main__":
    main()
