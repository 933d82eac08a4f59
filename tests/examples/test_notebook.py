"""Every notebook runs from its first cell to its last, and shows what it promises."""

import json
import runpy
from pathlib import Path

import matplotlib as mpl
import pytest

from hatdfed.core.policies import POLICIES
from hatdfed.data.datasets import DATASETS
from hatdfed.server.aggregation import AGGREGATORS
from hatdfed.server.networks import NETWORKS
from hatdfed.setup.methods import METHODS

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
OWN_THINGS = ROOT / "examples" / "own_things.ipynb"
player = runpy.run_path(str(ROOT / "docs" / "play_notebook.py"))
PRINTED = [
    "Labels go from 1 to 10, but must be numbered from 0. Subtract 1 from all of them.",
    "x has 900 samples, but y has 899.",
    "x is int64 of shape [900, 1, 8, 8]",
    "but 1 of these classes has no sample, such as 3.",
    "y has exactly one 1 in every row, as one-hot class labels have.",
    "x is a tensor that requires grad",
    "'unfinished' of hatdfed.policies, from this notebook, has no methods 'init', 'grow', 'update'",
    "'nearest' of hatdfed.methods was added in this notebook, which worker processes cannot read.",
    *(
        f"{fleet}: The aggregator {rule} breaks a law of merging: a rule {law}"
        for fleet in ("stacked", "mailbox")
        for rule, law in (
            ("TooMuch", "gives weights that sum to 1"),
            ("AllSlots", "reads no padding"),
            ("InHalves", "keeps the type of the models"),
        )
    ),
]
SHOWN = [
    "<RunResult: hat-dfed on arrays-",
    "% of new digits right, ",
    "<Comparison: nearest, rnd on arrays-",
    "<RunResult: full on arrays-",
    "<RunResult: nearest on arrays-",
    "<SweepResult: 2 points in ",
    "<Comparison: nearest, full on arrays-",
]


@pytest.fixture
def scope(monkeypatch):
    """The names of a notebook, whose main module has no file; what it adds to registries is gone afterwards."""
    for registry in (AGGREGATORS, DATASETS, METHODS, NETWORKS, POLICIES):
        monkeypatch.setattr(registry, "_loaded", dict(registry._loaded))
        monkeypatch.setattr(registry, "_of_notebook", set())
    mpl.use("Agg")
    return {"__name__": "__main__"}


def play(name, scope):
    return player["play_notebook"](ROOT / "examples" / name, scope)


def test_own_things_are_used_and_faults_in_them_are_named(scope):
    cells = play("own_things.ipynb", scope)
    printed = "".join(cell.printed for cell in cells)
    shown = "".join(cell.text + cell.html for cell in cells)
    assert [sentence for sentence in PRINTED if sentence not in printed] == []
    assert [text for text in SHOWN if text not in shown] == []
    assert shown.count("<table>") == 6
    assert cells[-1].text == "True"


def test_the_first_run_is_shown_plotted_and_made_longer(scope):
    cells = play("first_run.ipynb", scope)
    printed = "".join(cell.printed for cell in cells)
    assert "<RunResult: hat-dfed on digits" in cells[1].text
    assert "round 40: 6 links" in printed
    assert "There is no setting 'link_shar'. Did you mean link_share?" in printed
    assert sum(len(cell.pictures) for cell in cells) == 1
    assert cells[-1].text == "45"


def test_the_comparison_has_paired_differences_a_table_in_latex_and_figures(scope):
    cells = play("comparison.ipynb", scope)
    printed = "".join(cell.printed for cell in cells)
    assert "<Comparison: " in cells[1].text
    assert printed.count("points [") == 2
    assert printed.count("seed ") == 5
    assert r"\begin{tabular}" in printed
    assert sum(len(cell.pictures) for cell in cells) == 1
    assert cells[-1].text == "True"


def test_the_deployment_ends_well_and_leaves_models(scope):
    cells = play("deployment.ipynb", scope)
    assert cells[-2].text == "[0, 0, 0]"
    assert cells[-1].printed.startswith("3 rounds, ")
    assert cells[-1].text == "['store-edge-1', 'store-edge-2']"


def test_cells_that_run_again_replace_what_they_added(scope):
    texts = [text for kind, text in player["read_cells"](OWN_THINGS) if kind == "code"]
    player["play_cell"](texts[0], scope)
    (network,) = [text for text in texts if "class Residual" in text]
    player["play_cell"](network, scope)
    first = NETWORKS["residual"]
    player["play_cell"](network, scope)
    assert NETWORKS["residual"] is scope["Residual"] is not first


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_is_short_and_committed_without_outputs(notebook):
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    assert len(cells) <= 30
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells)


@pytest.mark.parametrize(
    ("cell", "shown"),
    [
        ("print('a')\n1 + 1", ("a\n", "2")),
        ("1 + 1;", ("", "")),
        ("x = 1", ("", "")),
    ],
)
def test_a_cell_shows_its_last_line_unless_a_semicolon_ends_it(cell, shown):
    played = player["play_cell"](cell, {})
    assert (played.printed, played.text) == shown
