"""A Ray cluster of two nodes on one machine: two raylets in two network namespaces with a cable between them.

Everything that is started in a namespace is ended with it, by its process number; `ray stop` would also end clusters of
other people on this machine.
"""

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

PORT = 6399
ADDRESSES = {"a": "10.77.31.1", "b": "10.77.31.2"}  # "a" is the head
HEAD = f"{ADDRESSES['a']}:{PORT}"
STORE_BYTES = 150_000_000


class TwoNodes:
    """The namespaces, and what runs in them."""

    def __init__(self, scratch):
        self.scratch = scratch
        token = scratch / "token"
        token.touch(0o600)
        token.write_text(secrets.token_hex(32))
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("RAY_")},
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(token),
            "RAY_USAGE_STATS_ENABLED": "0",
            "OMP_NUM_THREADS": "1",
            "TMPDIR": str(scratch),  # what killed processes leave behind goes with it
        }

    def namespace(self, node):
        return f"hatdfed{os.getpid()}{node}"

    def lay_cable(self):
        for node in ADDRESSES:
            _ip("netns", "add", self.namespace(node))
            _ip("-n", self.namespace(node), "link", "set", "lo", "up")
        _ip(
            *("link", "add", "cable", "netns", self.namespace("a"), "type", "veth"),
            *("peer", "name", "cable", "netns", self.namespace("b")),
        )
        for node, address in ADDRESSES.items():
            _ip("-n", self.namespace(node), "addr", "add", f"{address}/24", "dev", "cable")
            _ip("-n", self.namespace(node), "link", "set", "cable", "up")

    def command(self, node, *words):
        """For a process inside a node's namespace."""
        return ["ip", "netns", "exec", self.namespace(node), *map(str, words)]

    def start(self, node, cpus=1):
        ray = Path(sys.executable).with_name("ray")
        role = ["--head", "--port", PORT, "--include-dashboard", "false", "--temp-dir", self.scratch / "ray"]
        words = [
            *(ray, "start", *(role if node == "a" else ["--address", HEAD])),
            *("--node-ip-address", ADDRESSES[node], "--num-cpus", cpus, "--object-store-memory", STORE_BYTES),
            "--disable-usage-stats",
        ]
        started = subprocess.run(
            self.command(node, *words), env=self.environment, capture_output=True, text=True, timeout=60
        )
        assert started.returncode == 0, started.stdout + started.stderr

    def processes(self, node):
        listed = subprocess.run(["ip", "netns", "pids", self.namespace(node)], capture_output=True, text=True)
        return [int(number) for number in listed.stdout.split()]

    def kill(self, node):
        """At once, all of it, as when a machine loses its power."""
        for number in self.processes(node):
            os.kill(number, signal.SIGKILL)

    def close(self):
        for node in ADDRESSES:
            until = time.monotonic() + 10
            while self.processes(node) and time.monotonic() < until:
                self.kill(node)
                time.sleep(0.1)
            subprocess.run(["ip", "netns", "del", self.namespace(node)], capture_output=True)


def _ip(*words):
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"network namespaces cannot be made here: ip {' '.join(words)}: {done.stderr.strip()}")


@contextmanager
def two_nodes():
    """Both of them running; skips where there can be none."""
    pytest.importorskip("ray", reason="Ray is not installed")
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and the program ip (Debian: iproute2)")
    scratch = Path(tempfile.mkdtemp(prefix="hr-"))  # short: Ray puts sockets there, whose names may not be long
    nodes = TwoNodes(scratch)
    try:
        nodes.lay_cable()
        nodes.start("a")
        nodes.start("b")
        yield nodes
    finally:
        nodes.close()
        shutil.rmtree(scratch, ignore_errors=True)
