"""The experiments are the paper's: so many points, so many runs, and shared runs are shared."""

import pytest

from hatdfed.errors import ConfigError
from hatdfed.setup.layers import merge_layers, resolve
from hatdfed_paper.plans import EXPERIMENTS, FULL, SMOKE, THE_PAPER, experiment_named, points, runs, scale_named
from hatdfed_paper.results import run_name


@pytest.mark.parametrize(
    ("name", "count"), [("table1", 560), ("sparsity", 400), ("scalability", 80), ("sensitivity", 420), ("ablation", 60)]
)
def test_runs_of_the_paper(name, count):
    assert len(runs(name, FULL)) == count


def test_the_paper_is_1_6_million_server_rounds():
    every = {run_name(settings): settings for name in THE_PAPER for settings in runs(name, FULL)}
    assert sum(settings["servers"] * 200 for settings in every.values()) == 1_640_000


def test_table_1_is_all_settings_methods_and_seeds():
    rows = points("table1", FULL)
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
    pairs = {(row["gain_share"], row["quality_share"]) for row in points("sensitivity", FULL)}
    assert {(a, b) for a in (0.4, 0.5, 0.6, 0.7, 0.8) for b in (0.3, 0.4, 0.5)} <= pairs
    assert {(a, b) for a in (0.5, 0.6, 0.7) for b in (0.2, 0.3, 0.4, 0.5, 0.6)} <= pairs
    assert len(pairs) == 21


def test_experiments_recognise_each_others_runs():
    table = {run_name(row) for row in points("table1", FULL)}
    for name, shared in (("sparsity", 8), ("scalability", 2), ("sensitivity", 2), ("ablation", 2), ("readings", 2)):
        assert len(table & {run_name(row) for row in points(name, FULL)}) == shared, name


def test_a_baseline_keeps_its_own_number_of_links():
    (rnd,) = [row for row in points("table1", SMOKE) if row["method"] == "rnd"][:1]
    assert "link_share" not in rnd
    assert resolve(rnd).link_share == 0.4


@pytest.mark.parametrize("scale", [SMOKE, FULL], ids=lambda scale: scale.name)
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_point_can_be_resolved_and_stands_once(name, scale):
    found = points(name, scale)
    assert len({run_name(each) for each in found}) == len(found)
    for each in found:
        resolve(merge_layers(scale.common, each))


def test_names_that_do_not_exist():
    with pytest.raises(ConfigError, match="Did you mean table1"):
        experiment_named("table2")
    with pytest.raises(ConfigError, match="no scale called 'fulll'"):
        scale_named("fulll")
