"""The worked examples of CONTRIBUTING do what it says, in a copy of the package."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import hatdfed

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = re.findall(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.DOTALL)
SMALL = [
    "--dataset",
    "synthetic",
    "--servers",
    "3",
    "--rounds",
    "2",
    "--set",
    "network=linear",
    "--set",
    "samples_per_round=30",
]


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """A copy with both examples in it, so that one process plays them."""
    package = Path(shutil.copytree(Path(hatdfed.__file__).parent, tmp_path_factory.mktemp("site") / "hatdfed"))
    policy, column = EXAMPLES
    (package / "core" / "policies" / "rotating.py").write_text(policy, encoding="utf-8")
    declaration = package / "runs" / "round_row.py"
    text = declaration.read_text(encoding="utf-8")
    end = text.index("\n)\n", text.index("ROUND_COLUMNS"))
    declaration.write_text(f"{text[:end]}\n{column.rstrip()},{text[end:]}", encoding="utf-8")
    return package


def run(package, *words):
    environment = {**os.environ, "PYTHONPATH": str(package.parent), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "hatdfed", *words]
    done = subprocess.run(command, cwd=package.parent, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def summary(package):
    chosen = ("--set", "policy.name=rotating", "--set", "aggregator.name=uniform")
    return json.loads(run(package, "run", *SMALL, *chosen, "--out", "kept", "--json"))


def test_a_policy_is_one_file(summary):
    assert summary["links_per_round"] == 3


def test_a_metric_is_one_column(package, summary):
    assert summary["undelivered"] == 0
    assert "undelivered models" in " ".join(run(package, "show", "kept").split())  # wherever the line breaks
