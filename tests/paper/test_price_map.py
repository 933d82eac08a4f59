"""Re-pricing: the sums by cause at other prices, checked against runs at those prices."""

from pathlib import Path

import pytest
from tests.paper.made_results import results_of

import hatdfed
from hatdfed_paper.claims import Claims
from hatdfed_paper.experiments import EXPERIMENTS
from hatdfed_paper.plan import BASELINES, FULL, PLUS, point
from hatdfed_paper.price_map import FACTORS, price_panels, price_rows, reprice, split_rows
from hatdfed_paper.results import Results, read_all

PAPER = Path(__file__).resolve().parents[2] / "paper"
CLAIMS = Claims({})
CAUSES = {"link_energy_mj": 8.0, "training_energy_mj": 1.5, "upload_energy_mj": 0.5}


def test_a_run_at_other_prices_costs_what_repricing_says():
    """With links four times as dear and training half as dear, nothing changes but the bill."""
    same = {
        "dataset": "synthetic",
        "network": "linear",
        "servers": 4,
        "rounds": 5,
        "seed": 3,
        "method": "hat-dfed-plus-0.1",
    }
    energy = {"link_kbit_per_joule": [20.0, 50.0], "weak_joules_per_sample": 0.5, "strong_joules_per_sample": 0.25}
    other = {"link_kbit_per_joule": [5.0, 12.5], "weak_joules_per_sample": 0.25, "strong_joules_per_sample": 0.125}
    one, two = (hatdfed.run(**same, energy=prices) for prices in (energy, other))
    before, after = (run.summary["energy_by_cause_mj"] for run in (one, two))
    assert one.summary["accuracy_by_server"] == two.summary["accuracy_by_server"]
    assert after["link"] == pytest.approx(4 * before["link"])
    assert after["training"] == pytest.approx(0.5 * before["training"])
    assert after["upload"] == pytest.approx(before["upload"])


def test_sums_are_scaled_by_cause():
    figures = {"link_energy_mj": 8.0, "training_energy_mj": 1.0, "upload_energy_mj": 0.5}
    settings = point("cifar-10", "rnd")
    results = results_of([(settings, figures)])
    found = reprice(results, settings, link=0.25, training=10.0)
    assert found == {0: {"link_energy_mj": 2.0, "training_energy_mj": 10.0, "upload_energy_mj": 0.5}}
    assert reprice(results, point("cifar-10", "sgp"), 1.0, 1.0) == {}


def test_the_split_has_a_row_for_everything_that_was_played():
    (row,) = split_rows(results_of([(point("cifar-10", "rnd"), CAUSES)]), CLAIMS, FULL)
    assert (row["dataset"], row["method"], row["link_share_percent"]) == ("cifar-10", "rnd", 80.0)


def test_the_map_covers_prices_far_around_the_papers():
    results = Results(read_all(PAPER / "results", EXPERIMENTS, "full"))
    rows = price_rows(results, CLAIMS, FULL)
    assert len(rows) == 2 * len(FACTORS) ** 2
    middle = [row for row in rows if row["dataset"] == "cifar-10"][len(FACTORS) ** 2 // 2]
    assert middle["joules_per_model"] == pytest.approx(4129, rel=1e-2)
    assert middle["joules_per_sample"] == 45.0
    assert middle["link_share_percent"] == pytest.approx(80, abs=3)
    dear_links = [row["link_share_percent"] for row in rows if row["joules_per_sample"] == 45.0]
    assert dear_links == sorted(dear_links)


def test_the_map_has_a_line_for_every_price_of_a_sample():
    thrifty = {**CAUSES, "link_energy_mj": 0.0}
    runs = [(point("cifar-10", name), CAUSES) for name in BASELINES] + [(point("cifar-10", PLUS), thrifty)]
    (panel,) = price_panels(results_of(runs), CLAIMS, "cifar-10", FULL)
    assert len(panel["lines"]) == len(FACTORS)
    middle = panel["lines"][len(FACTORS) // 2]
    assert middle["saved"][len(FACTORS) // 2] == middle["share"][len(FACTORS) // 2] == pytest.approx(80.0)
    assert middle["x"] == sorted(middle["x"])
    (empty,) = price_panels(results_of(runs[:-1]), CLAIMS, "cifar-10", FULL)
    assert empty["lines"] == []


def test_at_the_papers_prices_the_map_saves_what_the_table_says():
    results = Results(read_all(PAPER / "results", EXPERIMENTS, "full"))
    (table,) = [table for table in EXPERIMENTS["plus"].tables if table.name == "plus"]
    rows = table.rows(results, CLAIMS, FULL)
    for dataset in FULL.datasets:
        middle = [row for row in price_rows(results, CLAIMS, FULL) if row["dataset"] == dataset][len(FACTORS) ** 2 // 2]
        (mine, *_) = [row for row in rows if (row["dataset"], row["method"], row["servers"]) == (dataset, PLUS, 5)]
        saved = mine["plus_is_ahead_by"]["total_energy_percent"]["mean"]
        assert middle["plus_saves_percent"] == pytest.approx(saved, abs=0.005)
