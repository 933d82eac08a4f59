"""Differences between methods, world by world."""

import math

import numpy as np
import pytest

from hatdfed.core.fleet import FinalAccuracy
from hatdfed.runs.result import RunResult
from hatdfed.runs.statistics import joules_to_reach, paired_difference, seconds_to_reach, summarise_runs
from hatdfed.runs.summary import summarise
from hatdfed.setup.layers import resolve


@pytest.mark.parametrize(
    ("degrees", "quantile"),
    [(1, 12.7062), (2, 4.30265), (4, 2.77645), (9, 2.26216), (30, 2.04227), (1000, 1.96234)],
)
def test_intervals_have_the_width_of_the_tables_of_students_t(degrees, quantile):
    values = {seed: float(seed % 3) for seed in range(degrees + 1)}
    difference = paired_difference(values, dict.fromkeys(values, 0.0))
    half = quantile * np.std(list(values.values()), ddof=1) / math.sqrt(degrees + 1)
    assert difference.high - difference.mean == pytest.approx(half, rel=3e-6)
    assert difference.mean - difference.low == pytest.approx(half, rel=3e-6)


def test_the_interval_of_two_pairs_is_that_of_cauchy():
    low, high = paired_difference({0: -1.0, 1: 1.0}, {0: 0.0, 1: 0.0})[1:3]
    assert (low, high) == pytest.approx((-math.tan(math.pi * 0.475), math.tan(math.pi * 0.475)), rel=1e-12)


def test_a_difference_has_the_interval_of_students_test():
    difference = paired_difference({0: 2.0, 1: 4.0, 2: 9.0}, {0: 1.0, 1: 2.0, 2: 6.0})  # 1, 2, 3
    half = 4.30265 / math.sqrt(3)
    assert difference == pytest.approx((2.0, 2 - half, 2 + half, 3), rel=1e-5)


def test_figures_are_paired_by_seed_and_not_by_place():
    mine, reference = {3: 70.0, 1: 50.0, 2: 61.0}, {1: 49.0, 2: 59.0, 3: 67.0}
    shuffled = dict(sorted(mine.items()))
    assert paired_difference(mine, reference) == paired_difference(shuffled, reference)
    assert paired_difference(mine, reference).mean == pytest.approx(2.0)


def test_what_worlds_have_in_common_cancels():
    """Worlds that differ by tens of points, methods that differ by one: only pairs show it."""
    rng = np.random.default_rng(0)
    worlds = rng.normal(60, 15, 10)
    mine = {seed: float(world + 1 + 0.2 * rng.normal()) for seed, world in enumerate(worlds)}
    reference = {seed: float(world) for seed, world in enumerate(worlds)}
    difference = paired_difference(mine, reference)
    assert 0.5 < difference.low < 1 < difference.high < 1.5
    assert np.std(list(mine.values()), ddof=1) > 20 * (difference.high - difference.low)


def test_the_interval_covers_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(1)
    hits = 0
    for _ in range(2000):
        found = paired_difference(dict(enumerate(rng.normal(3, 2, 4))), dict.fromkeys(range(4), 0.0))
        hits += found.low <= 3 <= found.high
    assert hits / 2000 == pytest.approx(0.95, abs=0.015)


def test_only_seeds_that_both_have_count_and_a_single_one_has_no_interval():
    assert paired_difference({0: 1.0, 1: 5.0, 2: 9.0}, {1: 4.0, 2: 7.0, 8: 0.0}).n == 2
    assert paired_difference({4: 3.0}, {4: 1.0}) == (2.0, None, None, 1)
    with pytest.raises(ValueError, match="no seed in common"):
        paired_difference({0: 1.0}, {1: 1.0})


def rounds(*accuracies):
    return [
        {"avg_accuracy": accuracy, "upload_joules": 1.0, "training_joules": 2.0, "link_joules": 4.0}
        for accuracy in accuracies
    ]


def test_joules_are_counted_up_to_the_first_round_that_reaches_the_accuracy():
    assert joules_to_reach(rounds(10.0, 50.0, 40.0, 60.0), 50.0) == 14.0
    assert joules_to_reach(rounds(10.0, 50.0, 40.0, 60.0), 50.1) == 28.0
    assert joules_to_reach(rounds(10.0, None, 50.0), 51.0) is None
    assert joules_to_reach([], 1.0) is None


def test_time_to_an_accuracy_is_counted_as_joules_are():
    timed = [{**row, "simulated_seconds": 2.0 + t} for t, row in enumerate(rounds(10.0, 50.0, 40.0, 60.0))]
    assert seconds_to_reach(timed, 50.0) == 5.0
    assert seconds_to_reach(timed, 50.1) == 14.0
    assert seconds_to_reach(timed, 61.0) is None
    assert seconds_to_reach(rounds(10.0, 50.0), 5.0) is None  # of a version that did not know them


def made_up(method, seed, accuracy, *, joules=100.0, curve=None):
    """A run that ended at `accuracy` percent, on the test set and (or as `curve` says) on the validation data."""
    config = resolve({"method": method, "seed": seed, "servers": 2, "dataset": "digits"})
    rounds = [
        {
            "t": t, "links": 1, "avg_accuracy": value, "std_accuracy": 0.0, "best_accuracy": value,
            "worst_accuracy": value, "upload_joules": 0.1 * joules, "training_joules": 0.3 * joules,
            "link_joules": 0.6 * joules, "regret_best_fixed": 0.5, "regret_best_each_round": 1.0, "seconds": 0.1,
            "consensus_distance": 0.01 * value, "simulated_seconds": 3.0,
        }
        for t, value in enumerate(curve or [accuracy / 2, accuracy])
    ]  # fmt: skip
    share = np.full(2, accuracy / 100)
    summary = summarise(config, FinalAccuracy(share, share, share), rounds)
    return RunResult(config, summary, rounds, [], [], [], np.zeros((2, 2)), None, None)


def made_up_methods(**accuracies):
    return {
        name.replace("_", "-"): [made_up(name.replace("_", "-"), seed, value) for seed, value in enumerate(values)]
        for name, values in accuracies.items()
    }


def test_a_row_has_means_differences_and_causes():
    runs = {
        "rnd": [made_up("rnd", 0, 50.0, joules=100.0), made_up("rnd", 1, 70.0, joules=200.0)],
        "full": [made_up("full", 0, 52.0, joules=150.0), made_up("full", 1, 71.0, joules=300.0)],
    }
    comparison = summarise_runs(runs)
    assert (comparison.reference, comparison.target_accuracy) == ("rnd", pytest.approx(0.9 * 61.5))
    mine, other = comparison.summary
    assert other["avg_accuracy"] == pytest.approx(61.5)
    assert other["avg_accuracy_difference"] == pytest.approx(1.5)
    assert other["avg_accuracy_difference_low"] == pytest.approx(1.5 - 12.7062 / 2, rel=1e-4)
    assert other["total_energy_percent_difference"] == pytest.approx(50.0)
    assert other["total_energy_percent_difference_low"] == pytest.approx(50.0)
    assert other["total_energy_mj_difference"] == pytest.approx(150e-6)
    assert other["upload_energy_mj"] == pytest.approx(45e-6)
    assert other["training_energy_mj_sd"] == pytest.approx(0.6 * np.std([150, 300], ddof=1) * 1e-6)
    assert mine["avg_accuracy_difference"] == mine["avg_accuracy_difference_high"] == 0
    causes = sum(other[f"{cause}_energy_mj"] for cause in ("upload", "training", "link"))
    assert causes == pytest.approx(other["total_energy_mj"])


def test_the_order_of_seeds_does_not_matter():
    straight = made_up_methods(rnd=[50.0, 60.0, 80.0], full=[51.0, 62.0, 81.0])
    shuffled = {"rnd": straight["rnd"][::-1], "full": [straight["full"][place] for place in (1, 2, 0)]}
    for mine, other in zip(summarise_runs(straight).summary, summarise_runs(shuffled).summary, strict=True):
        for key in mine.keys() - {"seeds"}:
            expected = other[key] if isinstance(other[key], str | None) else pytest.approx(other[key], rel=1e-12)
            assert mine[key] == expected, key


def test_pairs_show_what_means_over_worlds_hide():
    row = summarise_runs(made_up_methods(rnd=[20.0, 50.0, 80.0], full=[21.1, 50.9, 81.0])).summary[1]
    assert row["avg_accuracy_sd"] > 29
    assert 0 < row["avg_accuracy_difference_low"] < 1 < row["avg_accuracy_difference_high"] < 2


def test_another_reference_and_target_may_be_named():
    runs = made_up_methods(rnd=[50.0, 60.0], full=[52.0, 62.0])
    comparison = summarise_runs(runs, "full", 55.0)
    assert comparison.reference == "full"
    rnd, full = comparison.summary
    assert rnd["avg_accuracy_difference"] == pytest.approx(-2.0)
    assert (rnd["seeds_reached"], full["seeds_reached"]) == (1, 1)
    assert rnd["joules_to_target"] == pytest.approx(200.0)
    never = summarise_runs(runs, None, 99.0).summary[0]
    assert (never["joules_to_target"], never["seeds_reached"]) == (None, 0)


def test_the_default_target_and_reference_ignore_methods_that_see_the_test_set():
    runs = made_up_methods(hat_dfed_released=[90.0, 95.0], rnd=[50.0, 60.0], local=[30.0, 20.0])
    comparison = summarise_runs(runs)
    assert comparison.target_accuracy == pytest.approx(0.9 * 55)
    assert comparison.reference == "rnd"
    released = comparison.summary[0]
    assert released["leaks_test"] is True
    assert (released["joules_to_target"], released["seeds_reached"]) == (None, None)
    alone = summarise_runs({"hat-dfed-released": runs["hat-dfed-released"]})
    assert (alone.target_accuracy, alone.reference) == (None, "hat-dfed-released")


def test_a_row_of_one_seed_has_no_interval():
    row = summarise_runs(made_up_methods(rnd=[50.0], full=[52.0])).summary[1]
    assert row["avg_accuracy_difference_low"] is row["avg_accuracy_difference_high"] is None


def test_a_single_seed_that_reached_the_target_has_no_deviation():
    one = summarise_runs(made_up_methods(rnd=[50.0, 60.0]), None, 55.0).summary[0]
    assert (one["seeds_reached"], one["joules_to_target_sd"]) == (1, None)
    both = summarise_runs(made_up_methods(rnd=[50.0, 60.0]), None, 45.0).summary[0]
    assert (both["seeds_reached"], both["joules_to_target_sd"]) == (2, 0.0)


def test_accuracies_that_nobody_reported_leave_the_target_open():
    comparison = summarise_runs({"rnd": [made_up("rnd", 0, 50.0, curve=[40.0, 50.0])]})
    comparison.runs["rnd"][0].rounds[-1]["avg_accuracy"] = None
    assert summarise_runs(comparison.runs).target_accuracy is None
