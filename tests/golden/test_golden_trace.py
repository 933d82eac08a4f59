"""Ten rounds on synthetic data, pinned: what the algorithm decides may only change on purpose.

Topologies and joules are pinned exactly, accuracies to the last image, log-weights to 1e-6 (they follow accuracies).
`python tests/golden/test_golden_trace.py` writes the file anew; say in the CHANGELOG why.
"""

import functools
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hatdfed.runs.calls import run

FILE = Path(__file__).with_name("ten_rounds.json")
SETTINGS = {
    "dataset": "synthetic",
    "dataset_options": {"train": 1000, "validation": 200, "test": 200},
    "network": "linear",
    "validation_images": 100,
    "rounds": 10,
    "seed": 11,
}
METHODS = ("hat-dfed", "hat-dfed-literal", "rnd", "d-psgd")


@functools.cache
def trace(method):
    result = run(method=method, **SETTINGS)
    rounds = []
    for row in result.rounds:
        links = [[x["receiver"], x["sender"], x["propensity"]] for x in result.links if x["t"] == row["t"]]
        accuracy = [x["accuracy"] for x in result.servers if x["t"] == row["t"]]
        joules = [row["upload_joules"], row["training_joules"], row["link_joules"]]
        rounds.append({"links": links, "accuracy": accuracy, "joules": joules, "regret": row["regret_best_fixed"]})
    return {"rounds": rounds, "test_accuracy": result.summary["accuracy_by_server"]}


@pytest.mark.parametrize("method", METHODS)
def test_ten_rounds_are_what_they_always_were(method):
    pinned, now = json.loads(FILE.read_text())[method], trace(method)
    np.testing.assert_allclose(now["test_accuracy"], pinned["test_accuracy"], atol=1e-9)
    for t, (mine, theirs) in enumerate(zip(now["rounds"], pinned["rounds"], strict=True)):
        pairs = [[i, j] for i, j, _ in mine["links"]], [[i, j] for i, j, _ in theirs["links"]]
        assert pairs[0] == pairs[1], f"round {t} draws other links"
        np.testing.assert_allclose(mine["accuracy"], theirs["accuracy"], atol=1e-9)
        np.testing.assert_allclose(mine["joules"], theirs["joules"], rtol=1e-12)
        np.testing.assert_allclose([p for *_, p in mine["links"]], [p for *_, p in theirs["links"]], rtol=1e-6)
        assert mine["regret"] == pytest.approx(theirs["regret"], rel=1e-6, abs=1e-9)


def test_another_process_gives_an_identical_trace():
    code = (
        "import json, sys, torch; torch.set_num_threads(1); "
        f"sys.path.insert(0, {str(FILE.parent)!r}); "
        "from test_golden_trace import trace; print(json.dumps(trace('hat-dfed')))"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert json.loads(printed) == json.loads(json.dumps(trace("hat-dfed")))


if __name__ == "__main__":
    FILE.write_text(json.dumps({method: trace(method) for method in METHODS}, indent=1) + "\n")
