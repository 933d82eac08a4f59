"""A whole deployment on this machine, in one command: authority, coordinator, edges, each a process of its own.

    python examples/three_machines/cluster.py examples/three_machines/run.yaml --edges 5

Everything is the way it is on real machines: a private authority, single-use tokens, keys made at the edges, mutual TLS
on every connection. Only the addresses are all 127.0.0.1. What `docs/deploy.md` has you type on several machines, this
script types for you.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path

HATDFED = [sys.executable, "-m", "hatdfed"]


def main() -> int:
    """Start, wait, stop; the coordinator's exit code is ours."""
    arguments = _arguments()
    with ExitStack() as stack:
        folder = arguments.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hatdfed-cluster-")))
        folder.mkdir(parents=True, exist_ok=True)
        ca = folder / "ca"
        say(f"authority in {ca}")
        hatdfed("ca", "init", str(ca))
        port, desk = free_ports(2)
        coordinator = start(
            stack,
            folder / "coordinator.log",
            *("coordinator", str(arguments.config), "--state", str(folder / "run"), "--ca", str(ca)),
            *("--listen", f"127.0.0.1:{port}", "--desk", f"127.0.0.1:{desk}", "--set", f"servers={arguments.edges}"),
        )
        wait_for_port(desk, coordinator)
        for number in range(arguments.edges):
            join(f"edge-{number}", ca, desk, folder)
        say(f"{arguments.edges} edges have joined; logs in {folder}")
        edges = [
            start(
                stack,
                folder / f"edge-{number}.log",
                *("edge", "--coordinator", f"127.0.0.1:{port}", "--desk", f"127.0.0.1:{desk}", "--threads", "1"),
                *("--identity", str(folder / f"edge-{number}"), "--store", str(folder / f"store-{number}")),
            )
            for number in range(arguments.edges)
        ]
        code = watch(coordinator, edges, folder, arguments.seconds)
        if arguments.keep is None:
            say("All of it was in a temporary folder; --keep FOLDER keeps it, with run, models, logs and certificates.")
        return code


def join(name: str, ca: Path, desk: int, folder: Path) -> None:
    """A token for one edge, and the edge's identity for the token."""
    made = json.loads(hatdfed("token", "create", "--node", name, "--ca", str(ca), "--json"))
    hatdfed(
        *("edge", "join", "--coordinator", f"127.0.0.1:{desk}"),
        *("--ca-pin", made["pin"], "--identity", str(folder / name)),
        token=made["token"],
    )


def watch(
    coordinator: subprocess.Popen[bytes], edges: list[subprocess.Popen[bytes]], folder: Path, seconds: float
) -> int:
    """Until the coordinator has ended, and the edges with it."""
    end, has_edges = time.monotonic() + seconds, True
    while coordinator.poll() is None and time.monotonic() < end:
        time.sleep(0.2)
        if has_edges and all(edge.poll() is not None for edge in edges):
            has_edges = False
            end = min(end, time.monotonic() + 30)  # it has sent them home and is about to end, or never will
    if coordinator.poll() is None:
        say("the run did not end in time; see the logs")
        coordinator.terminate()
    code = coordinator.wait(timeout=20)
    codes = [edge.wait(timeout=20) for edge in edges]
    sys.stdout.write((folder / "coordinator.log").with_suffix(".out").read_text(encoding="utf-8"))
    if code or any(codes):
        say(f"exit codes: coordinator {code}, edges {codes}; the end of coordinator.log:")
        sys.stderr.write("\n".join((folder / "coordinator.log").read_text(encoding="utf-8").splitlines()[-10:]) + "\n")
    return code or max(codes)


def start(stack: ExitStack, log: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """A process that does not outlive this one; what it says goes to files."""
    err, out = stack.enter_context(log.open("wb")), stack.enter_context(log.with_suffix(".out").open("wb"))
    process = subprocess.Popen([*HATDFED, *arguments], stdout=out, stderr=err)  # noqa: S603
    stack.callback(_end, process)
    return process


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def hatdfed(*arguments: str, token: str | None = None) -> str:
    """One command, to its end; the token goes by the environment, where no list of processes shows it."""
    env = os.environ if token is None else {**os.environ, "HATDFED_TOKEN": token}
    done = subprocess.run([*HATDFED, *arguments], capture_output=True, text=True, env=env, check=False)  # noqa: S603
    if done.returncode:
        raise SystemExit(f"hatdfed {' '.join(arguments[:2])} failed: {done.stderr.strip()}")
    return done.stdout


def free_ports(count: int) -> list[int]:
    """Ports that nobody uses, below the range from which the system takes ports for connections."""
    ports: list[int] = []
    while len(ports) < count:
        port = random.randrange(10_000, 32_000)  # noqa: S311
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            ports += [port] if port not in ports else []
    return ports


def wait_for_port(port: int, process: subprocess.Popen[bytes], seconds: float = 30.0) -> None:
    """Until somebody listens."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise SystemExit("The coordinator did not start; see its log.")


def say(text: str) -> None:
    """To the person at the keyboard."""
    print(text, file=sys.stderr)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A whole deployment on this machine.")
    parser.add_argument("config", type=Path)
    parser.add_argument("--edges", type=int, default=5)
    parser.add_argument("--keep", type=Path, help="Folder for everything; a temporary one by default.")
    parser.add_argument("--seconds", type=float, default=600.0, help="Give up after so long.")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
