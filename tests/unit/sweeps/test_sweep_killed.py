"""Killed in the middle and started again: only what is missing is played, and the table is the same to the byte."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from tests.unit.sweeps.small import SMALL

import hatdfed
from hatdfed.runs.play import play

# The short runs end while the long ones, which share batches with them, are in the middle.
SWEEP = {"base": {**SMALL, "checkpoint_every": 25}, "grid": {"method": ["rnd", "full"], "rounds": [4, 150]}, "seeds": 2}
TABLES = ("summary.json", "summary.csv", "pareto.png")


def finished(folder):
    return {path.parent.name: path.stat().st_mtime_ns for path in folder.glob("runs/*/results.json")}


def kill_in_the_middle(file, folder):
    command = [sys.executable, "-m", "hatdfed", "sweep", str(file), "--out", str(folder), "--jobs", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
    while len(finished(folder)) < 2 and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()


@pytest.mark.processes
def test_a_sweep_that_is_killed_goes_on_to_the_same_table(tmp_path, monkeypatch):
    file = tmp_path / "small.yaml"
    file.write_text(json.dumps(SWEEP))
    kill_in_the_middle(file, tmp_path / "killed")
    time.sleep(1)  # its workers leave by themselves
    before, played = finished(tmp_path / "killed"), []
    assert 2 <= len(before) < 8
    monkeypatch.setattr(
        "hatdfed.sweeps.batches.play", lambda jobs, *rest, **more: played.extend(jobs) or play(jobs, *rest, **more)
    )
    hatdfed.sweep(file, out=tmp_path / "killed", jobs=1)
    assert {job.out.name for job in played}.isdisjoint(before)
    assert len(played) == 8 - len(before)
    assert any(job.resumed for job in played)
    after = finished(tmp_path / "killed")
    assert {name: after[name] for name in before} == before  # not touched
    hatdfed.sweep(file, out=tmp_path / "whole", jobs=1)
    for name in TABLES:
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "killed" / name).read_bytes(), name
