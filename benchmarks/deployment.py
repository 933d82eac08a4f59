"""Real processes on this machine: a coordinator and edges as a user starts them, with certificates."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import yaml

from hatdfed.deploy.identity.certificates import make_csr, make_key
from hatdfed.deploy.identity.files import IdentityFolder
from hatdfed.deploy.identity.identity_store import IdentityStore, create_identity_store
from hatdfed.deploy.identity.names import COORDINATOR, edge_id
from hatdfed.deploy.protocol import hatdfed_pb2 as pb
from hatdfed.deploy.protocol.hatdfed_pb2_grpc import OperationStub
from hatdfed.deploy.transport.endpoints import Endpoints

HATDFED = [sys.executable, "-m", "hatdfed"]
TICK = os.sysconf("SC_CLK_TCK")


class Processes:
    """A coordinator and as many edges as are started; all end with the `with`."""

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        self.folder = folder
        self.identity_store = create_identity_store(folder / "ca")
        self.edges: list[subprocess.Popen[bytes]] = []
        (folder / "run.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
        self.port, desk = free_ports(2)
        self.coordinator = self._start(
            "coordinator",
            *(
                *HATDFED,
                "coordinator",
                str(folder / "run.yaml"),
                "--state",
                str(folder / "run"),
                "--ca",
                str(folder / "ca"),
            ),
            *("--listen", f"127.0.0.1:{self.port}", "--desk", f"127.0.0.1:{desk}"),
        )

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for process in (*self.edges, self.coordinator):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in (*self.edges, self.coordinator):
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def start_edge(self, *options: str, command: Sequence[str] = (*HATDFED, "edge")) -> subprocess.Popen[bytes]:
        """One more, with one thread: there are more edges than cores. `command` is another program for an edge."""
        name = f"edge-{len(self.edges)}"
        known = identity(self.identity_store, self.folder / name)
        place = ("--coordinator", f"127.0.0.1:{self.port}", "--identity", str(known.path))
        store = ("--store", str(self.folder / f"store-{name}"))
        self.edges.append(self._start(name, *command, *place, *store, "--threads", "1", *options))
        return self.edges[-1]

    def status(self) -> dict[str, Any]:
        """What `hatdfed status` shows."""
        return asyncio.run(self._status())

    def drain(self, name: str) -> None:
        """The edge leaves, and takes no more part in the run."""
        asyncio.run(self._drain(name))

    def until(self, is_so: Callable[[dict[str, Any]], bool], seconds: float) -> dict[str, Any]:
        """Wait for a status."""
        end = time.monotonic() + seconds
        while not is_so(status := self.status()):
            if time.monotonic() > end or self.coordinator.poll() is not None:
                raise SystemExit(f"It did not come to that; the last status was {json.dumps(status)}.")
            time.sleep(0.2)
        return status

    async def watch(self, note: Callable[[dict[str, Any]], None], every: float) -> None:
        """Hand over the status again and again, until the coordinator has ended."""
        async with Endpoints(self.identity_store.identity).open_channel(
            f"127.0.0.1:{self.port}", COORDINATOR
        ) as channel:
            while self.coordinator.poll() is None:
                try:
                    answer = await OperationStub(channel).Status(pb.Nothing(), timeout=10)
                except Exception:  # noqa: BLE001 (it is just ending)
                    await asyncio.sleep(every)
                    continue
                note(json.loads(answer.json))
                await asyncio.sleep(every)

    async def _status(self) -> dict[str, Any]:
        async with Endpoints(self.identity_store.refresh()).open_channel(
            f"127.0.0.1:{self.port}", COORDINATOR
        ) as channel:
            answer = await OperationStub(channel).Status(pb.Nothing(), timeout=30, wait_for_ready=True)
        found: dict[str, Any] = json.loads(answer.json)
        return found

    async def _drain(self, name: str) -> None:
        async with Endpoints(self.identity_store.refresh()).open_channel(
            f"127.0.0.1:{self.port}", COORDINATOR
        ) as channel:
            await OperationStub(channel).Drain(pb.NodeName(name=name), timeout=30, wait_for_ready=True)

    def _start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen(command, stdout=log, stderr=log)  # noqa: S603


def identity(identity_store: IdentityStore, folder: Path) -> IdentityFolder:
    """As `hatdfed edge join` leaves it."""
    key, found = make_key(), IdentityFolder(folder)
    found.save(key, identity_store.authority.sign(make_csr(key), edge_id(folder.name)), identity_store.authority.pem)
    return found


def free_ports(count: int) -> list[int]:
    """Ports that nobody uses, below the range from which the system takes ports for connections."""
    ports: list[int] = []
    while len(ports) < count:
        port = random.randrange(10_000, 32_000)  # noqa: S311
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            ports += [port] if port not in ports else []
    return ports


def memory(pid: int) -> dict[str, int]:
    """Bytes: resident now, and the most since the last `forget_peak`."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    fields = dict(line.split(":", 1) for line in lines if line.startswith(("VmRSS", "VmHWM", "RssAnon", "RssFile")))
    return {name: 1024 * int(text.split()[0]) for name, text in fields.items()}


def forget_peak(pid: int) -> None:
    """The most that was resident is counted anew."""
    Path(f"/proc/{pid}/clear_refs").write_text("5", encoding="utf-8")


def cpu_seconds(pid: int) -> float:
    """That a process has computed so far."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK
