"""The packages of the paper and of the benchmarks run from source, where nothing of hatdfed is installed."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run_from_source(package, folder, *arguments):
    """`python -m package` with the sources on its path, and without the links of an editable installation (-S)."""
    path = [ROOT / "src", ROOT / folder / "src", *{sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}]
    return subprocess.run(
        [sys.executable, "-S", "-m", package, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path)), "COLUMNS": "200"},
        cwd=ROOT / "docs",
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize(
    ("package", "folder", "arguments", "words"),
    [
        ("hatdfed_paper", "paper", ["list", "--scale", "smoke"], ["table1", "plus_search_many"]),
        pytest.param(
            *("hatdfed_paper", "paper", ["tables", "scalability"], ["## scalability", "| cifar-10"]),
            marks=pytest.mark.processes,
        ),
        ("hatdfed_bench", "benchmarks", ["--help"], ["Usage: python -m hatdfed_bench", "--workload"]),
    ],
)
def test_a_package_runs_by_its_name(package, folder, arguments, words):
    done = run_from_source(package, folder, *arguments)
    assert done.returncode == 0, done.stderr
    for word in words:
        assert word in done.stdout


@pytest.mark.parametrize(
    ("package", "folder", "arguments", "words"),
    [
        ("hatdfed_paper", "paper", ["list", "--scale", "huge"], "no scale called 'huge'"),
        ("hatdfed_bench", "benchmarks", ["--servers", "one"], "--servers is 'one'"),
    ],
)
def test_what_is_wrong_is_one_sentence_there_too(package, folder, arguments, words):
    done = run_from_source(package, folder, *arguments)
    assert done.returncode == 2
    assert words in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_only_the_named_sources_are_seen():
    done = run_from_source("hatdfed_bench", "paper", "--help")
    assert "No module named hatdfed_bench" in done.stderr
