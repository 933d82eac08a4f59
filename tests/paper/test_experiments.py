"""The experiments are the paper's: so many points, so many runs, shared runs are shared, and each has its module."""

import importlib
import pkgutil
from pathlib import Path

import pytest
from tests.paper.made_results import results_of

from hatdfed.errors import ConfigError
from hatdfed.setup.layers import merge_layers, resolve
from hatdfed_paper import experiments
from hatdfed_paper.claims import Claims
from hatdfed_paper.experiment import Experiment, Figure, Table
from hatdfed_paper.experiments import EXPERIMENTS, THE_PAPER, experiment_named
from hatdfed_paper.figures import figure_digests, figure_title, write_figures
from hatdfed_paper.plan import FULL, SMOKE, point, scale_named
from hatdfed_paper.results import run_name
from hatdfed_paper.tables import all_markdown, all_tables
from hatdfed_paper.todo import todo
from hatdfed_paper.verdict_rules import REPRODUCED, Verdict


@pytest.mark.parametrize(
    ("name", "count"), [("table1", 560), ("sparsity", 400), ("scalability", 80), ("sensitivity", 420), ("ablation", 60)]
)
def test_runs_of_the_paper(name, count):
    assert len(EXPERIMENTS[name].runs(FULL)) == count


def test_the_paper_is_1_6_million_server_rounds():
    every = {run_name(settings): settings for name in THE_PAPER for settings in EXPERIMENTS[name].runs(FULL)}
    assert sum(settings["servers"] * 200 for settings in every.values()) == 1_640_000


def test_table_1_is_all_settings_methods_and_seeds():
    rows = EXPERIMENTS["table1"].all_points(FULL)
    methods = {"rnd", "d-psgd", "dac", "sgp", "hat-dfed", "full", "local"}
    assert {(r["dataset"], r["label_concentration"], r["device_online_probability"], r["method"]) for r in rows} == {
        (dataset, skew, online, method)
        for dataset in ("fashion-mnist", "cifar-10")
        for skew in (0.3, 0.7)
        for online in (0.5, 0.9)
        for method in methods
    }
    assert len(rows) == 56


def test_sensitivity_sweeps_each_weight_at_three_values_of_the_other():
    pairs = {(row["gain_share"], row["quality_share"]) for row in EXPERIMENTS["sensitivity"].all_points(FULL)}
    assert {(a, b) for a in (0.4, 0.5, 0.6, 0.7, 0.8) for b in (0.3, 0.4, 0.5)} <= pairs
    assert {(a, b) for a in (0.5, 0.6, 0.7) for b in (0.2, 0.3, 0.4, 0.5, 0.6)} <= pairs
    assert len(pairs) == 21


def test_experiments_recognise_each_others_runs():
    table = {run_name(row) for row in EXPERIMENTS["table1"].all_points(FULL)}
    for name, shared in (("sparsity", 8), ("scalability", 2), ("sensitivity", 2), ("ablation", 2), ("readings", 2)):
        assert len(table & {run_name(row) for row in EXPERIMENTS[name].all_points(FULL)}) == shared, name


def test_a_baseline_keeps_its_own_number_of_links():
    (rnd,) = [row for row in EXPERIMENTS["table1"].all_points(SMOKE) if row["method"] == "rnd"][:1]
    assert "link_share" not in rnd
    assert resolve(rnd).link_share == 0.4


@pytest.mark.parametrize("scale", [SMOKE, FULL], ids=lambda scale: scale.name)
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_point_can_be_resolved_and_stands_once(name, scale):
    found = EXPERIMENTS[name].all_points(scale)
    assert len({run_name(each) for each in found}) == len(found)
    for each in found:
        resolve(merge_layers(scale.common, each))


def test_names_that_do_not_exist():
    with pytest.raises(ConfigError, match="Did you mean table1"):
        experiment_named("table2")
    with pytest.raises(ConfigError, match="no scale called 'fulll'"):
        scale_named("fulll")


def test_every_module_of_an_experiment_is_in_the_list():
    listed = list(EXPERIMENTS.values())
    for module in pkgutil.iter_modules(experiments.__path__):
        here = importlib.import_module(f"{experiments.__name__}.{module.name}")
        own = getattr(here, "EXPERIMENTS", None) or (here.EXPERIMENT,)
        assert all(each in listed for each in own), module.name


def test_names_of_tables_and_figures_stand_for_one_each():
    tables = [table.name for each in EXPERIMENTS.values() for table in each.tables]
    kinds = [figure.kind for each in EXPERIMENTS.values() for figure in each.figures]
    assert len(set(tables)) == len(tables)
    assert len(set(kinds)) == len(kinds)


def test_a_new_experiment_is_complete_with_its_entry_in_the_list(monkeypatch, tmp_path):
    """Plan, table, figure, check and verdict of a module that nothing else knows about."""

    def points(dataset, scale):
        yield point(dataset, "rnd", rounds=3)

    def rows(results, claims, scale):
        return [{"rows": len(results.at(each)), "seeds": [0]} for each in new.all_points(scale)]

    def panels(results, claims, dataset, scale):
        return [{"lines": [{"x": [0, 1], "y": [0.5, 0.25], "seeds": 1}]}]

    def draw(data, title):
        import hatdfed.report.style as st

        return st.page(3, 2, title, "")

    new = Experiment(
        "new",
        "Does it suffice?",
        points,
        tables=(Table("new_table", rows, lambda rows: f"{len(rows)} row"),),
        figures=(Figure("new_figure", panels, lambda data: "it does", draw),),
        checks=lambda *_: [Verdict("check", "near", "1", "1", REPRODUCED, 1)],
        verdicts=lambda *_: [Verdict("RQ6", "suffices", "+1", "+1", REPRODUCED, 1)],
    )
    monkeypatch.setitem(EXPERIMENTS, "new", new)

    played = results_of([(point(dataset, "rnd", rounds=3), {"avg_accuracy": 1.0}) for dataset in FULL.datasets])
    claims = Claims.read()
    tables = all_tables(played, claims, FULL)
    assert [row["rows"] for row in tables["new_table"]] == [1, 1]
    assert all_markdown(tables)["new_table"] == "2 row"
    assert [row["group"] for row in tables["claims"]] == ["check", "RQ6"]
    assert len(todo(["new"], SMOKE, tmp_path).missing) == SMOKE.seeds
    assert set(figure_digests(played, claims, SMOKE)) == {"new_figure-digits.png"}
    (picture, _) = write_figures(played, claims, SMOKE, tmp_path)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert figure_title({"kind": "new_figure", "dataset": "digits"}) == "Digits: it does"


def test_no_shared_module_names_an_experiment():
    """What an experiment needs stands in its module."""
    shared = Path(experiments.__file__).parents[1].glob("*.py")
    named = {
        (path.name, name)
        for path in shared
        for name in EXPERIMENTS
        if name != "plus" and f'"{name}"' in path.read_text(encoding="utf-8")
    }
    assert named == set()
