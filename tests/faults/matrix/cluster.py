"""A deployment of real processes with certificates, each on a machine of its own, whose history is recorded."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import yaml
from tests.faults.matrix.machines import Machines

from hatdfed.deploy.history import COORDINATOR, read_history, recorded
from hatdfed.deploy.history import note as note_event
from hatdfed.deploy.identity.authority import LIFETIME
from hatdfed.deploy.identity.certificates import make_csr, make_key
from hatdfed.deploy.identity.files import IdentityFolder
from hatdfed.deploy.identity.identity_store import create_identity_store
from hatdfed.deploy.identity.names import edge_id
from hatdfed.setup.layers import resolve

KILLED = 137
PORT = 7444
DEPLOY = {"beat_seconds": 1.0, "away_seconds": 4.0, "idle_seconds": 3.0, "round_seconds": 10.0}


def make_config(method="hat-dfed", **more):
    """A model of 131,530 numbers on a few made-up images."""
    few = {"train": 300, "validation": 60, "test": 60}
    fixed = {"dataset": "synthetic", "dataset_options": few, "servers": 5, "validation_images": 40}
    return resolve(
        {"method": method, "network": "paper-cnn", "images_per_server": 80, "codec": "float32", **fixed, **more}
    )


class Cluster:
    """Use as `with Cluster(folder, config) as cluster`; the processes do not outlive it."""

    def __init__(self, folder, config, *, state=None, **deploy):
        self.folder, self.config = folder, config
        self.state = state or folder / "run"
        self.names = [f"edge-{number}" for number in range(config.servers)]
        self.machines = Machines(["coordinator", *self.names])
        self.processes = {}
        self.history = folder / "history.jsonl"
        self._settings = folder / "config.yaml"
        text = {**config.model_dump(mode="json"), "deploy": {**DEPLOY, **deploy}}
        self._settings.write_text(yaml.safe_dump(text))
        self._store = create_identity_store(folder / "ca", LIFETIME)
        for name in self.names:
            self._make_identity(name)

    def __enter__(self):
        self.machines.__enter__()
        return self

    def __exit__(self, *_):
        for name, process in self.processes.items():
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()
            self.processes[name] = process
        self.machines.__exit__()

    def _make_identity(self, name):
        key = make_key()
        certificate = self._store.authority.sign(make_csr(key), edge_id(name), self._store.lifetime)
        (self.folder / "identities").mkdir(exist_ok=True)
        IdentityFolder(self.folder / "identities" / name).save(key, certificate, self._store.authority.pem)

    # Processes.

    def start_coordinator(self, failpoint=None):
        where = f"{self.machines.address('coordinator')}:{PORT}"
        more = ("--state", self.state, "--listen", where, "--ca", self.folder / "ca", "--json")
        return self._start("coordinator", failpoint, "coordinator", self._settings, *more)

    def start_edge(self, name, failpoint=None):
        coordinator = f"{self.machines.address('coordinator')}:{PORT}"
        where = ("--coordinator", coordinator, "--identity", self.folder / "identities" / name, "--threads", 1)
        return self._start(name, failpoint, "edge", *where, "--store", self.store(name))

    def start(self, *, failpoint=None):
        self.start_coordinator(failpoint)
        for name in self.names:
            self.start_edge(name)

    def store(self, name):
        return self.folder / "stores" / name

    def _start(self, name, failpoint, *arguments):
        env = {**os.environ, "PYTHONUNBUFFERED": "1", "HATDFED_HISTORY": str(self.history), "OMP_NUM_THREADS": "1"}
        env.pop("HATDFED_FAILPOINT", None)
        if failpoint is not None:
            env["HATDFED_FAILPOINT"] = failpoint
        command = self.machines.command(name, sys.executable, "-m", "hatdfed", *arguments)
        with (self.folder / f"{name}.log").open("ab") as err:
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=err, env=env)
        self.processes[name] = process
        return process

    def kill(self, name):
        self.processes[name].kill()
        self.processes[name].wait()

    def freeze(self, name):
        self.processes[name].send_signal(signal.SIGSTOP)
        self.note("freeze", name)

    def thaw(self, name):
        self.note("thaw", name)
        self.processes[name].send_signal(signal.SIGCONT)

    def wait_for_end(self, name="coordinator", seconds=120.0):
        """The exit code."""
        return self.processes[name].wait(timeout=seconds)

    def log(self, name="coordinator"):
        return (self.folder / f"{name}.log").read_text(encoding="utf-8")

    # History.

    def events(self, what=None, **fields):
        found = read_history(self.history) if self.history.exists() else []
        return [
            event
            for event in found
            if what in (None, event["what"]) and all(event.get(name) == value for name, value in fields.items())
        ]

    def index(self, name):
        """As the coordinator gave it."""
        word = f"{name} is ready as server "
        return int(self.log().partition(word)[2].split('"')[0].split("\n")[0])

    def note(self, what, name, **fields):
        node = COORDINATOR if name == "coordinator" else self.index(name)
        with recorded(self.history):
            note_event(what, node, **fields)

    def until(self, is_so, seconds=60.0):
        """Wait until something is so; returns how long that took."""
        began = time.monotonic()
        while not (found := is_so()):
            if time.monotonic() - began > seconds:
                raise TimeoutError(f"did not happen in {seconds:g} s; the log says: {self.log()[-2000:]}")
            ended = self.processes.get("coordinator")
            if ended is not None and ended.poll() not in (None, 0, KILLED, -signal.SIGKILL, 3):
                raise AssertionError(f"the coordinator ended with {ended.poll()}: {self.log()[-2000:]}")
            time.sleep(0.1)
        self.found = found
        return time.monotonic() - began

    def until_event(self, what, after=0.0, seconds=60.0, **fields):
        """The first such event later than `after`."""
        self.until(lambda: [e for e in self.events(what, **fields) if e["at"] > after], seconds)
        return self.found[0]

    def until_round(self, t, seconds=120.0):
        """Wait until round t is open."""
        return self.until_event("open", seconds=seconds, round=t)

    def memory(self, name):
        """Megabytes, descriptors, threads."""
        pid = self.processes[name].pid
        status = Path(f"/proc/{pid}/status").read_text()
        words = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
        return {
            "megabytes": int(words["VmRSS"].split()[0]) / 1024,
            "descriptors": len(list(Path(f"/proc/{pid}/fd").iterdir())),
            "threads": int(words["Threads"]),
        }
