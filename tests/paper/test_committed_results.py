"""What is committed under paper/ is complete where it must be, current, and what the documents are made of."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hatdfed.cli.app import main
from hatdfed.setup.layers import resolve
from hatdfed.setup.methods import method_named
from hatdfed.setup.run_identity import run_key
from hatdfed_paper.claims import METRICS, Claims
from hatdfed_paper.experiments import EXPERIMENTS
from hatdfed_paper.experiments.calibration import calibrate, choose_passes
from hatdfed_paper.experiments.plus_search import SWEEPS, allowed_link_mj, choose_recipe, measure_changes
from hatdfed_paper.experiments.readings import choose_readings
from hatdfed_paper.figures import figure_digests
from hatdfed_paper.plan import BASELINES, FULL
from hatdfed_paper.results import Results, read_all
from hatdfed_paper.tables import all_tables, judge_claims
from hatdfed_paper.verdict_rules import NOT, PARTLY, REPRODUCED

PAPER = Path(__file__).resolve().parents[2] / "paper"


@pytest.fixture(scope="module")
def results():
    return Results(read_all(PAPER / "results", EXPERIMENTS, "full"))


@pytest.fixture(scope="module")
def claims():
    return Claims.read()


@pytest.fixture(scope="module")
def tables(results, claims):
    return all_tables(results, claims, FULL)


def test_every_result_is_of_todays_settings(results):
    for name, file in results.files.items():
        stale = [
            record["settings"]
            for record in file.records.values()
            if run_key(resolve(record["settings"])) != record["key"]
        ]
        assert stale == [], name


def test_table_1_is_there_in_full(tables):
    assert len(tables["table_1"]) == 56
    assert all(row["seeds"] == list(range(10)) for row in tables["table_1"])


def test_published_figures_stand_beside_ours(tables):
    five = [row for row in tables["table_1"] if row["method"] in (*BASELINES, "hat-dfed")]
    assert len(five) == 40
    for row in five:
        assert set(row["published"]) == set(METRICS)
        assert all(len(row[name]) == 2 for name in METRICS)
    (ours,) = [r for r in five if _where(r) == ("cifar-10", 0.7, 0.9) and r["method"] == "hat-dfed"]
    assert ours["published"]["avg_accuracy"] == [51.1, 0.5]


def test_energies_are_within_ten_percent_of_the_price_list(tables):
    assert len(tables["energy"]) == 56
    for row in tables["energy"]:
        assert abs(row["link_energy_mj_deviation_percent"]) <= 10, row
        assert abs(row["total_energy_mj_deviation_percent"]) <= 10, row


def test_a_link_costs_what_it_should(tables):
    (full,) = [r for r in tables["energy"] if _where(r) == ("fashion-mnist", 0.3, 0.5) and r["method"] == "full"]
    assert full["expected_link_energy_mj"] == pytest.approx(20 * 200 * 1441.6e-6, rel=1e-3)
    assert full["expected_total_energy_mj"] - full["expected_link_energy_mj"] == pytest.approx(
        1000 * 15 * 12.544e-6 + 1000 * 30 * 13.0e-6, rel=1e-3
    )


def test_the_defaults_are_what_the_rules_choose(results, claims):
    for dataset in FULL.datasets:
        assert choose_passes(calibrate(results, claims, dataset)) == resolve({"dataset": dataset}).local_passes
    assert choose_readings(results, FULL.datasets) == {}  # what `hat-dfed` reads stays


def test_every_sweep_starts_from_what_the_one_before_it_chose_and_the_last_makes_the_method(results):
    guesses = [sweep.guess for sweep in SWEEPS.values()]
    chosen = [
        choose_recipe(sweep, measure_changes(results, FULL, sweep), allowed_link_mj(results, FULL, sweep))
        for sweep in SWEEPS.values()
    ]
    assert guesses[1:] == chosen[:-1]
    assert method_named("hat-dfed-plus-0.1").settings == chosen[-1]


def test_every_baseline_gets_worse_with_more_skew(tables):
    accuracy = {
        (r["dataset"], r["label_concentration"], r["device_online_probability"], r["method"]): r["avg_accuracy"][0]
        for r in tables["table_1"]
    }
    for (dataset, skew, online, method), value in accuracy.items():
        if skew == 0.3:
            assert value < accuracy[dataset, 0.7, online, method]


def test_runs_that_saw_the_test_set_are_marked(results):
    for name in ("released", "readings"):
        for record in results.files[name].records.values():
            leaks = record["settings"].get("feedback") == "test" or (
                record["settings"]["method"] == "hat-dfed-released" and "feedback" not in record["settings"]
            )
            assert record["figures"]["leaks_test"] == leaks
    for name in ("table1", "sparsity", "scalability", "sensitivity", "ablation", "calibration"):
        assert not any(record["figures"]["leaks_test"] for record in results.files[name].records.values())


def test_verdicts_are_given_for_every_question(results, claims):
    found = judge_claims(results, claims, FULL)
    assert {each.group for each in found} == {"RQ1", "RQ2", "RQ3", "RQ4", "RQ5"}
    assert {each.verdict for each in found} <= {REPRODUCED, PARTLY, NOT}


def test_the_committed_pictures_are_of_the_committed_results(results, claims):
    known = json.loads((PAPER / "figures" / "figures.json").read_text())
    assert known == figure_digests(results, claims, FULL)
    assert {path.name for path in (PAPER / "figures").glob("*.png")} == set(known)


def test_the_command_prints_one_object_of_lists(tables, monkeypatch, capfd):
    monkeypatch.setattr("hatdfed_paper.cli.all_tables", lambda *_: tables)  # made once is enough
    monkeypatch.setattr(sys, "argv", ["hatdfed", "paper", "tables", "--json"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert not stop.value.code
    tables = json.loads(capfd.readouterr().out)
    assert {"table_1", "sparsity", "scalability", "sensitivity", "ablation", "headline"} <= set(tables)
    assert all(isinstance(rows, list) for rows in tables.values())
    assert all("published" in row for rows in tables.values() for row in rows)
    assert all(row["seeds"] for name, rows in tables.items() for row in rows if name != "claims")
    for row in tables["table_1"]:
        assert {"dataset", "label_concentration", "device_online_probability", "method", "seeds", "published"} <= set(
            row
        )


def test_the_headline_can_be_worked_out_from_the_table(tables):
    (headline,) = tables["headline"]
    gains = []
    for row in tables["table_1"]:
        if row["method"] == "hat-dfed":
            same = [r for r in tables["table_1"] if _where(r) == _where(row)]
            rivals = [r["avg_accuracy"][0] for r in same if r["method"] in BASELINES]
            assert len(rivals) == 4
            gains.append(row["avg_accuracy"][0] - sum(rivals) / 4)
    assert headline["avg_accuracy_gain_points"] == pytest.approx(sum(gains) / len(gains), abs=1e-3)
    assert headline["published"]["avg_accuracy_gain_points"] == 1.9


def test_points_of_a_finished_experiment_are_all_there(results):
    for name in ("table1", "ablation", "calibration", "released"):
        assert all(results.at(each) for each in EXPERIMENTS[name].all_points(FULL)), name


def _where(row):
    return row["dataset"], row["label_concentration"], row["device_online_probability"]


@pytest.fixture(scope="module")
def two_seeds(results):
    """A part of every file: what is missing from a table does not depend on how often the rest was run."""
    return {
        name: replace(file, records={key: each for key, each in file.records.items() if each["settings"]["seed"] < 2})
        for name, file in results.files.items()
    }


@pytest.mark.parametrize("gone", EXPERIMENTS)
def test_tables_can_be_made_without_any_one_file(gone, two_seeds, claims):
    files = {name: file for name, file in two_seeds.items() if name != gone}
    all_tables(Results(files), claims, FULL)


def test_what_learns_from_the_test_set_has_no_validation_accuracy(results):
    for file in results.files.values():
        for record in file.records.values():
            assert (record["figures"]["validation_accuracy"] is None) == record["figures"]["leaks_test"]
