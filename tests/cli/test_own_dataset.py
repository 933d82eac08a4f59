"""`--dataset FILE.npz` in run, compare and sweep: results, and one sentence where the file cannot be used."""

import json

import numpy as np
import pytest
from tests.cli.test_cli import hatdfed, refused

__all__ = ["hatdfed"]  # the fixture
pytestmark = pytest.mark.usefixtures("blank_pictures")
RNG = np.random.default_rng(0)
X = RNG.normal(size=(120, 4)).astype(np.float32)
Y = X[:, 0] * 5 + 20
FEW = ["--servers", "3", "--rounds", "2"]


@pytest.fixture
def folder(tmp_path):
    np.savez(tmp_path / "table.npz", x=X, y=Y)
    (tmp_path / "sweep.yaml").write_text(
        "base: {dataset: table.npz, rounds: 2, servers: 3}\ngrid: {method: [local, full]}\n"
    )
    return tmp_path


def test_a_run_says_what_was_learned_and_how_well(hatdfed, folder):
    done = hatdfed("run", "--dataset", "table.npz", *FEW, "--json", cwd=folder)
    results = json.loads(done.stdout)
    assert results["config"]["task"] == "regression"
    assert results["dataset"].startswith("table-")
    assert results["metrics"]["rmse"] > 0
    assert len(results["metrics_by_server"]["rmse"]) == 3
    shown = hatdfed("show", results["run_folder"], cwd=folder).stdout
    assert "rmse" in shown
    assert "mean scores of regression" in shown.replace("\n", " ")


def test_a_comparison_and_a_sweep_take_a_file(hatdfed, folder):
    done = hatdfed("compare", "--dataset", "table.npz", "--methods", "local,full", "--seeds", "1", *FEW, cwd=folder)
    assert "rmse on the test data: local " in done.stdout
    assert "personal" in done.stdout
    done = hatdfed("sweep", "sweep.yaml", "--jobs", "1", "--out", "swept", cwd=folder)
    assert "full" in done.stdout


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"x": X}, "next-token prediction needs token ids"),
        ({"y": Y}, "has no array 'x', but y"),
        ({"x": X, "y": Y[:7]}, "x has 120 samples, but y has 7"),
        ({"x": X, "y": np.arange(120) % 3 + 1}, "Subtract 1 from all of them"),
        ({"x": X.astype(object), "y": Y}, "Python objects, which are never unpickled"),
        ({"x": X * np.nan, "y": Y}, "NaN or infinite"),
        ({"x": X.astype(complex), "y": Y}, "complex numbers"),
        ({"x": X[:0], "y": Y[:0]}, "x is empty"),
        ({"x": X[:12], "y": Y[:12]}, "There are 12 samples, but at least 20"),
    ],
)
@pytest.mark.parametrize("command", ["run", "compare", "sweep"])
def test_a_file_that_cannot_be_used_is_refused(hatdfed, folder, command, arrays, said):
    np.savez(folder / "table.npz", **arrays)
    rest = ["--dataset", "table.npz", *FEW] if command != "sweep" else ["sweep.yaml", "--jobs", "1"]
    if command == "compare":
        rest += ["--methods", "local,full", "--seeds", "1"]
    assert refused(hatdfed(command, *rest, cwd=folder, check=False), said)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 no archive", b"{}"])
def test_a_file_that_is_no_archive_is_refused(hatdfed, folder, content):
    (folder / "table.npz").write_bytes(content)
    assert refused(hatdfed("run", "--dataset", "table.npz", *FEW, cwd=folder, check=False), "is not a valid .npz file")


def test_a_file_that_is_not_there_is_refused(hatdfed, folder):
    assert refused(hatdfed("run", "--dataset", "tabel.npz", *FEW, cwd=folder, check=False), "does not exist")
