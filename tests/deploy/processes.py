"""Coordinators and edges as processes of their own, which can be killed."""

import asyncio
import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time

import yaml
from tests.deploy.deployment import QUICK

from hatdfed.deploy.coordinator.journal import Journal
from hatdfed.deploy.edge.edge import Edge, EdgeOptions
from hatdfed.deploy.edge.setup import make_edge_setup
from hatdfed.deploy.edge.store import EdgeStore
from hatdfed.deploy.identity.names import edge_id
from hatdfed.deploy.transport.endpoints import Endpoints
from hatdfed.errors import RunFolderError
from hatdfed.runs.records.folder import RunFolder

HATDFED = [sys.executable, "-m", "hatdfed"]
KILLED = 137


def free_port():
    """A port below those that the system gives to connections: none of these can take it before it is listened at."""
    while True:
        port = random.randrange(10_000, 32_000)  # noqa: S311
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


class Processes:
    """One run in plain text on loopback; use as `with Processes(folder, config) as processes`."""

    def __init__(self, folder, config, **quick):
        self.folder, self.port = folder, free_port()
        self.state = folder / "run"
        self.config_file = folder / "config.yaml"
        deploy = {**QUICK.model_dump(mode="json"), **quick}
        self.config_file.write_text(yaml.safe_dump({**config.model_dump(mode="json"), "deploy": deploy}))
        self.started = []
        self.edges, self.tasks = {}, {}

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.wait()

    def coordinator(self, failpoint=None):
        more = ("--state", str(self.state), "--listen", f"127.0.0.1:{self.port}", "--insecure", "--json")
        return self._start("coordinator", failpoint, "coordinator", str(self.config_file), *more)

    def edge_process(self, name, failpoint=None):
        where = ("--coordinator", f"127.0.0.1:{self.port}", "--insecure", "--name", name, "--threads", "1")
        return self._start(name, failpoint, "edge", *where, "--store", str(self.folder / "stores" / name))

    def _start(self, log, failpoint, *arguments):
        env = {**os.environ, "PYTHONUNBUFFERED": "1"}
        if failpoint is not None:
            env["HATDFED_FAILPOINT"] = failpoint
        with (self.folder / f"{log}.log").open("ab") as err:
            process = subprocess.Popen([*HATDFED, *arguments], stdout=subprocess.DEVNULL, stderr=err, env=env)
        self.started.append(process)
        return process

    def start_edge(self, name, make_setup=make_edge_setup):
        """In this process."""
        options = EdgeOptions(f"127.0.0.1:{self.port}", "127.0.0.1:0", patience=30.0)
        self.edges[name] = Edge(
            options, Endpoints(None, edge_id(name)), EdgeStore(self.folder / "stores" / name), make_setup
        )
        self.tasks[name] = asyncio.ensure_future(self.edges[name].serve())
        return self.edges[name]

    async def start_edges(self, count):
        """One after the other: torch has one random state a process, and first models are drawn from it."""
        for number in range(count):
            edge = self.start_edge(f"edge-{number}")
            async with asyncio.timeout(60):  # a limit for edges that hang; machines are busy at times
                while edge._handler is None:
                    await asyncio.sleep(0.02)

    def log(self, name="coordinator"):
        return (self.folder / f"{name}.log").read_text(encoding="utf-8")

    def records(self, table):
        database = RunFolder(self.state).read()
        try:
            return database.records(table)
        finally:
            database.close()

    def so_far(self, table):
        """The same while the run may not have begun."""
        try:
            return self.records(table)
        except RunFolderError:
            return []

    def links(self):
        """Of all committed plans, as matrices would print them."""
        journal = Journal(self.state / "journal.sqlite")
        try:
            return journal.read_links()
        finally:
            journal.close()


async def ended(process, seconds=60.0):
    """The exit code, while the event loop goes on."""
    end = time.monotonic() + seconds
    while process.poll() is None:
        if time.monotonic() > end:
            process.send_signal(signal.SIGKILL)
            raise AssertionError("a process did not end in time")
        await asyncio.sleep(0.05)
    return process.returncode
