"""A deployment inside one test: a coordinator and edges on loopback, with real certificates."""

import asyncio
import contextlib
import threading

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
from hatdfed.setup.layers import resolve

# All servers in every round: a round that begins without a slow one would make tests fail now and then.
QUICK = DeploySettings(min_servers=100, beat_seconds=0.2, away_seconds=2.0, idle_seconds=2.0, round_seconds=20.0)


def settings(method="hat-dfed", **more):
    few = {"train": 300, "validation": 60, "test": 60}
    fixed = {"dataset": "synthetic", "dataset_options": few, "servers": 3, "rounds": 4, "validation_images": 40}
    return resolve({"method": method, "network": "small-cnn", "images_per_server": 80, **fixed, **more})


def note_end(process):
    """An event that is set once the thread that plays the run has ended."""
    ended, play = threading.Event(), process._play

    def play_to_the_end():
        try:
            return play()
        finally:
            ended.set()

    process._play = play_to_the_end
    return ended


class Deployment:
    """Use as `async with Deployment(folder, config) as deployment`."""

    metrics = None  # where processes serve metrics; port 0 for any

    def __init__(
        self,
        folder,
        config,
        quick=QUICK,
        *,
        secure=True,
        join_address=None,
        lifetime=LIFETIME,
        connection_seconds=600.0,
    ):
        self.folder, self.config, self.quick, self.join_address = folder, config, quick, join_address
        self.connection_seconds = connection_seconds
        self.identity_store = create_identity_store(folder / "ca", lifetime) if secure else None
        self.edges = {}
        self.tasks = {}

    async def __aenter__(self):
        await self.start_coordinator()
        return self

    async def __aexit__(self, *error):
        for edge_task in self.tasks.values():
            edge_task.cancel()
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)
        await self.stop_coordinator()

    async def start_coordinator(self, port=0):
        identity = None if self.identity_store is None else self.identity_store.identity
        endpoints = Endpoints(identity, connection_seconds=self.connection_seconds)
        options = CoordinatorOptions(
            self.folder / "run",
            f"127.0.0.1:{port}",
            endpoints,
            self.identity_store,
            self.join_address,
            self.metrics,
        )
        self.process = CoordinatorProcess(self.config, self.quick, options)
        self.has_played = note_end(self.process)
        self.run = asyncio.ensure_future(self.process.serve())
        while not self.process.port and not self.run.done():
            await asyncio.sleep(0.01)
        self.port = self.process.port
        while self.join_address is not None and not self.process.join_port and not self.run.done():
            await asyncio.sleep(0.01)
        if self.join_address is not None:
            self.join_address = (self.join_address[0], self.process.join_port)

    async def stop_coordinator(self):
        self.process.hub.stop_requested.set()
        with contextlib.suppress(asyncio.CancelledError):
            await self.run

    async def lose_coordinator(self):
        """As if it had been killed: the edges are not told."""
        self.run.cancel()
        await asyncio.gather(self.run, return_exceptions=True)
        self.process.hub.stop_requested.set()  # ends the thread that plays
        await self.until(self.has_played.is_set)

    def endpoints(self, name):
        """The endpoints of an edge, with an identity of its own."""
        if self.identity_store is None:
            return Endpoints(None, edge_id(name))
        folder = IdentityFolder(self.folder / "identities" / name)
        if not folder.cert_file.exists():
            key = make_key()
            (self.folder / "identities").mkdir(exist_ok=True)
            cert = self.identity_store.renew(edge_id(name), make_csr(key))
            folder.save(key, cert, self.identity_store.authority.pem)
        return Endpoints(folder, edge_id(name), self.connection_seconds)

    def start_edge(
        self,
        name,
        *,
        make_setup=make_edge_setup,
        listen="127.0.0.1:0",
        advertise="",
        relay="",
        endpoints=None,
        keep=2,
    ):
        options = EdgeOptions(
            f"127.0.0.1:{self.port}",
            listen,
            advertise,
            patience=20.0,
            relay=relay,
            join_address=self.join_address,
            metrics=self.metrics,
        )
        self.edges[name] = Edge(
            options, endpoints or self.endpoints(name), EdgeStore(self.folder / "stores" / name, keep), make_setup
        )
        self.tasks[name] = asyncio.ensure_future(self.edges[name].serve())
        return self.edges[name]

    async def start_edges(self, count, **more):
        """One after the other: torch has one random state a process, and first models are drawn from it."""
        edges = []
        for number in range(count):
            edges.append(self.start_edge(f"edge-{number}", **more))
            await self.until(lambda edge=edges[-1]: edge._handler is not None)
        return edges

    async def kill_edge(self, name):
        """Without a word, as far as that can be in one process."""
        self.tasks[name].cancel()
        await asyncio.gather(self.tasks[name], return_exceptions=True)

    async def until(self, is_so, seconds=20.0):
        """Wait until something is so."""
        async with asyncio.timeout(seconds):
            while not is_so():
                await asyncio.sleep(0.02)

    @property
    def status(self):
        return self.process.status()

    @property
    def active(self):
        """How many servers can play now."""
        return sum(server["active"] for server in self.status["servers"])
