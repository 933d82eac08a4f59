"""Which settings mattered: a planted one comes first, and what is chance is said to be."""

import json
import re

import pytest
from tests.unit.sweeps.small import SMALL
from typer.testing import CliRunner

import hatdfed
from hatdfed.cli.app import app
from hatdfed.errors import RunFolderError
from hatdfed.randomness import stream
from hatdfed.sweeps.file import read_sweep
from hatdfed.sweeps.importance import measure_importance

pytest.importorskip("optuna")

PARAMETERS = {
    "link_share": {"low": 0.1, "high": 0.9},
    "policy.thrift": {"low": 0.01, "high": 10.0, "log": True},
    "codec": ["float32", "float16", "int8"],
}
CHOICES = read_sweep({"search": {"parameters": PARAMETERS}}).search.parameters


def draw(count):
    draws = stream(0, "importance")
    return [
        {
            "link_share": float(draws.uniform(0.1, 0.9)),
            "policy.thrift": float(10 ** draws.uniform(-2, 1)),
            "codec": str(draws.choice(["float32", "float16", "int8"])),
        }
        for _ in range(count)
    ]


def first(found, objective):
    return next(iter(found["objectives"][objective]["shares"]))


def test_a_planted_setting_comes_first_for_its_objective():
    tried = draw(40)
    accuracy = [50 + 40 * each["link_share"] + 2 * (each["codec"] == "int8") for each in tried]
    joules = [{"float32": 4.0, "float16": 2.0, "int8": 1.0}[each["codec"]] + each["link_share"] for each in tried]
    found = measure_importance(CHOICES, tried, {"accuracy": accuracy, "joules": joules})
    assert (first(found, "accuracy"), first(found, "joules")) == ("link_share", "codec")
    for each in found["objectives"].values():
        assert sum(each["shares"].values()) == pytest.approx(1, abs=1e-3)
        assert each["explained"] > 0.7
    assert max(found["objectives"]["accuracy"]["shares"].values()) > 0.8
    assert found["notes"] == []
    assert found == measure_importance(CHOICES, tried, {"accuracy": accuracy, "joules": joules})


def test_noise_and_few_trials_are_told():
    noise = [float(value) for value in stream(1, "noise").normal(size=12)]
    found = measure_importance(CHOICES, draw(12), {"accuracy": noise})
    few, chance = found["notes"]
    assert "Only 12 trials of 3 settings: with fewer than 20" in few
    assert "hardly predict accuracy of unseen trials" in chance


def test_too_few_trials_have_no_importance():
    found = measure_importance(CHOICES, draw(7), {"accuracy": [1.0] * 7})
    assert found["objectives"] == {}
    assert found["notes"] == ["Importance needs 8 trials or more, but there are 7."]


def test_where_nothing_varies_nothing_matters():
    found = measure_importance(CHOICES, draw(30), {"accuracy": [90.0] * 30})
    assert set(found["objectives"]["accuracy"]["shares"].values()) == {0.0}
    assert "All trials have the same accuracy" in found["notes"][0]


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """Half of the learning rates learn nothing, and these trials are pruned; nobody uses the other setting."""
    search = {
        "parameters": {"gain_share": [0.5, 0.6], "learner.learning_rate": [1e-9, 2e-9, 3e-9, 0.02, 0.03, 0.04]},
        "sampler": "grid",
        "at_once": 12,
        "objectives": ["accuracy"],
        "pruner": {"name": "halving", "rounds": [2]},
    }
    folder = tmp_path_factory.mktemp("importance") / "s"
    base = {**SMALL, "method": "rnd", "rounds": 4}
    return folder, hatdfed.sweep({"base": base, "search": search, "seeds": [1]}, out=folder, jobs=1)


def test_with_a_pruner_the_trials_that_it_stopped_count(played):
    _, result = played
    assert result.search["pruning"]["pruned_trials"] >= 6
    importance = result.search["importance"]
    assert (importance["after_round"], importance["trials"]) == (2, 12)
    assert first(importance, "accuracy") == "learner.learning_rate"
    assert importance["objectives"]["accuracy"]["shares"]["learner.learning_rate"] > 0.9


def test_show_prints_what_mattered_and_json_has_it(played):
    folder, result = played
    shown = CliRunner().invoke(app, ["show", str(folder)])
    assert shown.exit_code == 0
    assert re.search(r"learner\.learning_rate +(9\d|100) %", shown.output)
    saved = result.search["pruning"]["rounds_saved"]
    assert f"saved {saved} of 48 rounds" in shown.output
    assert "Only 12 trials of 2 settings" in shown.output
    document = json.loads(CliRunner().invoke(app, ["show", str(folder), "--json"]).stdout)
    assert document["search"] == json.loads(json.dumps(result.search))
    assert (folder / "importance.png").stat().st_size > 10_000


def test_figures_draws_it_anew(played, tmp_path):
    drawn = CliRunner().invoke(app, ["figures", str(played[0]), "--format", "svg", "--out", str(tmp_path)])
    assert drawn.exit_code == 0
    assert (tmp_path / "importance.svg").is_file()


@pytest.mark.parametrize("damage", [3, {"importance": 1}, {"objectives": [], "importance": {"objectives": {"a": 1}}}])
def test_a_damaged_summary_is_one_sentence(played, tmp_path, damage):
    (tmp_path / "sweep.yaml").write_text((played[0] / "sweep.yaml").read_text())
    document = json.loads((played[0] / "summary.json").read_text())
    (tmp_path / "summary.json").write_text(json.dumps({**document, "search": damage}))
    with pytest.raises(RunFolderError, match="says of the search cannot be read"):
        hatdfed.load(tmp_path)
