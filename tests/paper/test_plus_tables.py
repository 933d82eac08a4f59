"""Tables about hat-dfed-plus, from figures made by hand, and what equal footing means."""

import pytest

from hatdfed.setup.layers import resolve
from hatdfed_paper.equal_footing import equal_footing, fitting_interval, links_at_mean_price
from hatdfed_paper.plans import BASELINES, SMOKE, point, points
from hatdfed_paper.plus_tables import plus_tables
from hatdfed_paper.results import ResultFile, Results, keep

BASE = {"var_accuracy": 1.0, "std_accuracy": 1.0, "best_accuracy": 60.0, "worst_accuracy": 40.0}


def results_of(runs):
    files = {"by hand": ResultFile(None, "smoke")}
    for settings, figures in runs:
        for seed in (0, 1):
            spread = {name: value + seed for name, value in {**BASE, **figures}.items()}
            keep(files, "by hand", {"key": "", "settings": {**settings, "seed": seed}, "figures": spread})
    return Results(files)


def test_plus_is_held_against_the_mean_of_the_four_baselines_and_each_method_against_it():
    accuracy = {"rnd": 50.0, "d-psgd": 52.0, "dac": 54.0, "sgp": 56.0, "hat-dfed": 48.0, "hat-dfed-plus-0.1": 60.0}
    runs = [
        (point("digits", method), {"avg_accuracy": value, "total_energy_mj": 10.0, "link_energy_mj": 8.0})
        for method, value in accuracy.items()
    ]
    rows = {row["method"]: row for row in plus_tables(results_of(runs), SMOKE)["plus"]}
    assert set(rows) == set(accuracy)
    assert rows["hat-dfed-plus-0.1"]["plus_is_ahead_by"]["avg_accuracy_points"]["mean"] == pytest.approx(7.0)
    assert rows["hat-dfed"]["plus_is_ahead_by"]["avg_accuracy_points"]["mean"] == pytest.approx(12.0)
    assert rows["sgp"]["plus_is_ahead_by"]["total_energy_percent"]["mean"] == pytest.approx(0.0)
    assert rows["hat-dfed-plus-0.1"]["plus_is_ahead_by"]["worst_over_best_points"]["mean"] == pytest.approx(-20.0)
    assert rows["hat-dfed-plus-0.1"]["every"] == 2
    assert rows["rnd"]["every"] == 1


def test_without_plus_there_is_nothing_to_say():
    runs = [(point("digits", "rnd"), {"avg_accuracy": 50.0, "total_energy_mj": 1.0, "link_energy_mj": 1.0})]
    assert plus_tables(results_of(runs), SMOKE)["plus"] == []


@pytest.mark.parametrize("servers", [5, 20])
@pytest.mark.parametrize("method", [*BASELINES, "hat-dfed"])
def test_the_interval_is_the_smallest_that_costs_no_more(method, servers):
    own, plus = (
        resolve({"method": name, "dataset": "cifar-10", "servers": servers}) for name in (method, "hat-dfed-plus-0.1")
    )
    rounds = plus.rounds - plus.schedule.finish_rounds
    allowed = rounds // plus.schedule.every * links_at_mean_price(plus)
    m = fitting_interval(own, plus)
    assert rounds // m * links_at_mean_price(own) <= allowed < rounds // (m - 1) * links_at_mean_price(own)


def test_a_preference_for_cheap_links_is_counted():
    plus = resolve({"method": "hat-dfed-plus-0.1", "dataset": "cifar-10"})
    assert 4.0 < links_at_mean_price(plus) < 5.0
    assert links_at_mean_price(resolve({"method": "d-psgd", "dataset": "cifar-10"})) == 10.0


def test_equal_footing_gives_the_parts_and_nothing_else():
    given = equal_footing("d-psgd", "cifar-10", 5)
    config = resolve({"method": "d-psgd", "dataset": "cifar-10", **given})
    plus = resolve({"method": "hat-dfed-plus-0.1", "dataset": "cifar-10"})
    assert (config.loss, config.codec) == (plus.loss, plus.codec)
    assert config.schedule.finish_rounds == plus.schedule.finish_rounds
    assert config.policy.name == "ring"


def test_the_ablation_takes_one_part_away_at_a_time():
    plus = resolve({"method": "hat-dfed-plus-0.1"})
    for settings in points("plus_ablation", SMOKE)[1:]:
        config = resolve({**settings, "label_concentration": 0.3})
        parts = ("loss", "learner", "codec", "schedule", "policy", "aggregator")
        assert sum(getattr(config, part) != getattr(plus, part) for part in parts) == 1
