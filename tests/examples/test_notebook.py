"""The notebook runs from its first cell to its last, and shows what it promises."""

import ast
import json
from pathlib import Path

import matplotlib as mpl
import pytest

from hatdfed.core.policies import POLICIES
from hatdfed.data.datasets import DATASETS
from hatdfed.server.aggregation import AGGREGATORS
from hatdfed.server.networks import NETWORKS
from hatdfed.setup.methods import METHODS

NOTEBOOK = Path(__file__).resolve().parents[2] / "examples" / "own_things.ipynb"
PRINTED = [
    "Labels go from 1 to 10, but must be numbered from 0. Subtract 1 from all of them.",
    "x has 900 samples, but y has 899.",
    "x is int64 of shape [900, 1, 8, 8]",
    "'unfinished' of hatdfed.policies, from this notebook, has no methods 'init', 'grow', 'update'",
    "'nearest' of hatdfed.methods was added in this notebook, which worker processes cannot read.",
    "The aggregator TooMuch breaks a law of merging: a rule gives weights that sum to 1",
]
SHOWN = [
    "<RunResult: hat-dfed on arrays-",
    "% of new digits right, ",
    "<Comparison: nearest, rnd on arrays-",
    "<RunResult: full on arrays-",
    "<RunResult: nearest on arrays-",
]


def play(cell, scope):
    """Run a cell; return what its last line shows, as a notebook would."""
    *body, last = ast.parse("".join(cell["source"])).body
    is_shown = isinstance(last, ast.Expr)
    exec(compile(ast.Module(body if is_shown else [*body, last], []), "cell", "exec"), scope)  # noqa: S102
    if not is_shown:
        return ""
    value = eval(compile(ast.Expression(last.value), "cell", "eval"), scope)  # noqa: S307
    return f"{value!r} {value._repr_html_()}" if hasattr(value, "_repr_html_") else repr(value)


@pytest.fixture
def scope(monkeypatch):
    """The names of a notebook, whose main module has no file; what it adds to registries is gone afterwards."""
    for registry in (AGGREGATORS, DATASETS, METHODS, NETWORKS, POLICIES):
        monkeypatch.setattr(registry, "_loaded", dict(registry._loaded))
        monkeypatch.setattr(registry, "_of_notebook", set())
    mpl.use("Agg")
    return {"__name__": "__main__"}


def test_every_cell_runs_and_shows_what_it_promises(scope, capsys):
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    assert len(cells) <= 30
    shown = "\n".join(play(cell, scope) for cell in cells if cell["cell_type"] == "code")
    printed = capsys.readouterr().out
    assert [sentence for sentence in PRINTED if sentence not in printed] == []
    assert [text for text in SHOWN if text not in shown] == []
    assert shown.count("<table>") == 4
    assert shown.splitlines()[-1] == "True"


def test_cells_that_run_again_replace_what_they_added(scope):
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    play(cells[1], scope)
    (network,) = [cell for cell in cells if "class Residual" in "".join(cell["source"])]
    play(network, scope)
    first = NETWORKS["residual"]
    play(network, scope)
    assert NETWORKS["residual"] is scope["Residual"] is not first


def test_it_is_committed_without_outputs():
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells)
