"""Every example runs, prints what it promises, and keeps the laws that it claims to keep."""

import importlib.util
import re
import runpy
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hatdfed.core.policies import POLICIES
from hatdfed.core.round import STRETCH
from hatdfed.data.datasets import DATASETS
from hatdfed.server.aggregation import AGGREGATORS
from hatdfed.server.losses import LOSSES
from hatdfed.server.networks import NETWORKS
from hatdfed.setup.build.coordinator import make_coordinator, make_prices
from hatdfed.setup.layers import resolve
from hatdfed.setup.methods import METHODS

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
PROMISES = {
    "own_residual_network": [r"^accuracy [\d.]+ %, (lifted|looped) on \w+: .+$"],
    "hat_dfed_in_one_file": [
        r"^round +3 +validation accuracy +[\d.]+% +spent +\d+ J$",
        r"^test accuracy [\d.]+%$",
    ],
    "own_policy": [
        r"^method +accuracy +link energy$",
        r"^rnd +[\d.]+ ± +[\d.]+ % +\d+ J$",
        r"^least-recently-heard +[\d.]+ ± +[\d.]+ % +\d+ J$",
    ],
    "own_merging": [
        rf"^{rule} +{loss} +accuracy +[\d.]+ %$"
        for rule in ("uniform", "own-first")
        for loss in ("cross-entropy", "root-prior")
    ],
    "own_model": [
        r"^small-cnn +accuracy +[\d.]+ % +[\d.]+ kJ$",
        r"^group-norm-cnn +accuracy +[\d.]+ % +[\d.]+ kJ$",
    ],
    "own_data": [
        rf"^{method} +accuracy +[\d.]+ % on people never seen, worst server +[\d.]+ %, +[\d.]+ kJ$"
        for method in ("local", "hat-dfed", "full")
    ],
    "own_table_regression": [
        rf"^{method} +score +[\d.]+ +error +[\d.]+ points +R² +-?[\d.]+$" for method in ("local", "hat-dfed", "full")
    ],
    "own_transformer": [r"^[\d.]+ % of letters right, perplexity [\d.]+$"],
}


def load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


own_data = load("own_data")

# Collected here as they are by `pytest examples/own_policy.py`.
TestLeastRecentlyHeard = load("own_policy").TestLeastRecentlyHeard
TestOwnFirst = load("own_merging").TestOwnFirst
TestGroupNormCnn = load("own_model").TestGroupNormCnn
TestDigitsByWriter = own_data.TestDigitsByWriter


def test_every_example_is_run_here_and_listed():
    names = {path.stem for path in EXAMPLES.glob("*.py")}
    assert names == PROMISES.keys()
    linked = re.findall(r"\]\(([^)#]+)\)", (EXAMPLES / "README.md").read_text())
    assert {Path(target).stem for target in linked if target.endswith(".py")} >= names
    assert [target for target in linked if not (EXAMPLES / target).exists()] == []


@pytest.mark.parametrize("name", ["own_residual_network", "own_table_regression", "own_transformer"])
def test_own_data_and_models_take_a_script_of_forty_lines(name):
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) <= 40


@pytest.fixture
def forgotten_additions(monkeypatch):
    """What an example adds to a registry is gone after the test."""
    for registry in (AGGREGATORS, DATASETS, LOSSES, METHODS, NETWORKS, POLICIES):
        monkeypatch.setattr(registry, "_loaded", dict(registry._loaded))


@pytest.mark.usefixtures("forgotten_additions")
@pytest.mark.parametrize("name", PROMISES)
def test_an_example_runs_and_prints_what_it_promises(name, tmp_path, monkeypatch, capsys):
    """As a script, but in this process: importing torch five more times would take longer than all of them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--rounds", "3"])
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    printed = capsys.readouterr().out
    for promise in PROMISES[name]:
        assert re.search(promise, printed, re.MULTILINE), (promise, printed)
    assert list(tmp_path.iterdir()) == []


def test_the_own_policy_draws_among_those_that_are_there():
    """With a budget for five servers, of which some are there, or all, or none."""
    config = resolve({"method": "rnd", "servers": 5, "link_share": 0.9, "churn": 0.5})
    prices = make_prices(config, bits_per_sample=8, num_params=10)
    coordinator = replace(make_coordinator(config, prices), policy=load("own_policy").LeastRecentlyHeard())
    state, away = coordinator.start(np.zeros(5)), set()
    for t in range(0, 300, STRETCH):
        context, draw = coordinator.context(state._replace(t=t)), coordinator.plan(state._replace(t=t)).draw
        assert draw.topology.num_links == context.budget
        assert not (draw.drawn & ~context.possible).any()
        away.add(int(np.count_nonzero(~context.active)))
    assert away >= {0, 2, 3, 4}


def test_the_one_file_uses_nothing_of_the_library():
    imported = re.findall(
        r"^\s*(?:from|import) (\w+)", (EXAMPLES / "hat_dfed_in_one_file.py").read_text(), re.MULTILINE
    )
    assert set(imported) == {"argparse", "math", "typing", "numpy", "torch", "sklearn"}


def test_the_forms_to_test_on_are_not_among_those_to_train_on():
    dataset = own_data.load()
    assert sorted(set(dataset.groups)) == list(range(10))
    counts = [len(images.y) for images in (dataset.train, dataset.validation, dataset.test)]
    assert counts == [1287, 258, 252]
    assert sum(counts) == 1797


def test_the_forms_are_by_different_hands():
    from sklearn.datasets import load_digits

    ink, labels = load_digits(return_X_y=True)
    writer = own_data.writers(labels)
    assert set(writer) == set(range(14))
    squares = (ink**2).sum(axis=1)
    distance = squares[:, None] + squares[None, :] - 2 * ink @ ink.T
    distance[labels[:, None] != labels[None, :]] = float("inf")
    distance.flat[:: len(labels) + 1] = float("inf")
    most_similar = distance.argmin(axis=1)
    assert (writer[most_similar] == writer).mean() == pytest.approx(0.54, abs=0.005)
