"""Forty runs on two Ray nodes, one of which is killed in the middle: every run comes home, none twice."""

import json
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from tests.cluster import sweep_driver
from tests.cluster.two_nodes import HEAD, two_nodes

import hatdfed
from hatdfed.runs.calls import run
from hatdfed.runs.play import Job
from hatdfed.runs.records.folder import RunFolder
from hatdfed.runs.records.reading import reading
from hatdfed.sweeps.catalogue import is_finished, read_run
from hatdfed.sweeps.file import read_sweep
from hatdfed.sweeps.points import all_runs, points

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def nodes():
    with two_nodes() as both:
        yield both


class Driver:
    """A process on the first node."""

    def __init__(self, nodes, out, *, address=HEAD, cpus=1, **environment):
        words = (sys.executable, "-m", "tests.cluster.sweep_driver", address, out, cpus)
        self.process = subprocess.Popen(
            nodes.command("a", *words),
            env={**nodes.environment, **environment},
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._late = threading.Timer(200, self.process.kill)
        self._late.start()

    def events(self):
        with self.process:
            yield from map(json.loads, self.process.stdout)
        self._late.cancel()


def test_a_cluster_with_another_token_refuses_in_one_sentence(nodes, tmp_path):
    wrong = tmp_path / "token"
    wrong.write_text("not the token")
    driver = Driver(nodes, tmp_path / "out", RAY_AUTH_TOKEN_PATH=str(wrong))
    (refusal,) = driver.events()
    assert refusal["kind"] == "ClusterError"
    assert "refuses this machine's token" in refusal["text"]
    assert driver.process.returncode == 2


def test_a_batch_that_no_node_has_room_for_is_refused(nodes, tmp_path):
    (refusal,) = Driver(nodes, tmp_path / "out", cpus=2).events()  # two nodes with one CPU each
    assert "needs 2 CPUs and 0 GPUs, and no machine of the Ray cluster has so many" in refusal["text"]


def test_a_sharded_run_of_two_hundred_servers_equals_one_that_is_whole(nodes, tmp_path):
    settings = {"method": "hat-dfed-plus", "servers": 200, "rounds": 4, "seed": 3}
    flags = [word for name, value in settings.items() for word in (f"--{name}", value)]
    places = ["--fleet", "sharded", "--shards", 4, "--address", HEAD, "--out", tmp_path / "run", "--json"]
    hatdfed = Path(sys.executable).with_name("hatdfed")
    there = subprocess.run(
        nodes.command("a", hatdfed, "run", *flags, *places),
        env=nodes.environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert there.returncode == 0, there.stderr
    assert json.loads(there.stdout)["computed_by"]["shards"] == 4
    shared, whole = read_run(RunFolder(tmp_path / "run")), run(settings, fleet="stacked")
    assert {(row["t"], row["receiver"], row["sender"]) for row in shared.links} == {
        (row["t"], row["receiver"], row["sender"]) for row in whole.links
    }
    assert len(shared.links) > 200
    assert shared.ledger == whole.ledger
    mine, theirs = (np.array(each.summary["accuracy_by_server"]) for each in (shared, whole))
    np.testing.assert_allclose(mine, theirs, atol=0.3)  # percent: an image or two where rounding fell otherwise


def test_one_node_is_killed_in_the_middle(nodes, tmp_path):
    out, seen = tmp_path / "out", []
    driver = Driver(nodes, out)
    for event in driver.events():
        seen.append(event)
        if event["event"] == "done" and _count(seen, "done") == 12:
            assert nodes.processes("b")
            nodes.kill("b")
    assert driver.process.returncode == 0
    assert seen[-1] == {"event": "end", "rows": 8, "failed": {}}
    runs = {run.name: run.config for run in all_runs(points(read_sweep(sweep_driver.FILE)))}
    assert len(runs) == 40
    assert Counter(event["run"] for event in seen if event["event"] == "done") == dict.fromkeys(runs, 1)
    assert sorted(path.name for path in (out / "runs").iterdir()) == sorted(runs)
    for name, config in runs.items():
        assert is_finished(Job(config, out / "runs" / name))
        with reading(out / "runs" / name / "run.sqlite") as records:
            assert records.progress()["rounds"] == config.rounds
    lost = [event["text"] for event in seen if event["event"] == "note"]
    assert lost
    assert all("was lost" in text for text in lost)
    orders = [frozenset(event["runs"]) for event in seen if event["event"] == "order"]
    assert len(orders) == len(set(orders)) + len(lost)  # a batch is played again only where it was lost
    assert sum(map(len, set(orders))) == len(runs)
    rounds = [event for event in seen if event["event"] == "rounds"]
    assert rounds[-1]["done"] == rounds[-1]["total"] == sum(config.rounds for config in runs.values())
    here = hatdfed.sweep(sweep_driver.FILE, out=tmp_path / "here", jobs=2, device="cpu")
    assert (
        json.loads((out / "summary.json").read_text())["rows"]
        == json.loads((here.folder / "summary.json").read_text())["rows"]
    )


def _count(events, kind):
    return sum(event["event"] == kind for event in events)
