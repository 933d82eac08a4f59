"""A cluster on one machine that is interrupted leaves nothing behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from tests.deploy.deployment import settings

ROOT = Path(__file__).resolve().parents[2]
CLUSTER = ROOT / "examples" / "three_machines" / "cluster.py"


def processes_of(session):
    """Everybody in a session who is not dead; zombies are."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


def ports_in(log):
    return [int(line.rpartition("port ")[2].strip('"} \n')) for line in log.splitlines() if "at port " in line]


def listening():
    """Local ports in state LISTEN."""
    lines = [
        line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
    ]
    return {int(fields[1].rpartition(":")[2], 16) for fields in lines if fields[3] == "0A"}


@pytest.mark.parametrize("to_all", [True, False], ids=["ctrl-c", "kill -INT"])
@pytest.mark.slow
def test_an_interrupted_cluster_leaves_no_process_and_no_port(tmp_path, to_all):
    config = tmp_path / "run.yaml"
    config.write_text(yaml.safe_dump(settings(rounds=100000).model_dump(mode="json")))
    command = [sys.executable, str(CLUSTER), str(config), "--edges", "2", "--keep", str(tmp_path / "kept")]
    with (tmp_path / "out").open("wb") as out:
        cluster = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)
    try:
        log = tmp_path / "kept" / "coordinator.log"
        wait_for(lambda: log.exists() and log.read_text().count("is ready as server") == 2, cluster, tmp_path)
        ports = ports_in(log.read_text())
        assert len(ports) == 2
        assert set(ports) <= listening()
        (os.killpg if to_all else os.kill)(cluster.pid, signal.SIGINT)
        cluster.wait(timeout=40)
        assert processes_of(cluster.pid) == []
        assert not set(ports) & listening()
    finally:
        if processes_of(cluster.pid):
            os.killpg(cluster.pid, signal.SIGKILL)
        cluster.wait()


def wait_for(is_so, cluster, folder, seconds=60):
    end = time.monotonic() + seconds
    while not is_so():
        assert cluster.poll() is None, (folder / "out").read_text()
        assert time.monotonic() < end, (folder / "out").read_text()
        time.sleep(0.1)
