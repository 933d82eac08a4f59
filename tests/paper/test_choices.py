"""The rules that choose, and the rules that judge, on results made by hand."""

import pytest

from hatdfed.runs.statistics import PairedDifference
from hatdfed_paper.choices import calibration, chosen_passes, chosen_readings
from hatdfed_paper.claims import Claims
from hatdfed_paper.plans import READINGS, point, settings_of_table_1
from hatdfed_paper.results import ResultFile, Results, keep
from hatdfed_paper.verdict_rules import NOT, PARTLY, REPRODUCED, at_most, best_of_sweep, by_share, judged

DATASETS = ("fashion-mnist", "cifar-10")


def results_of(figures):
    """Results from (point, seed, figures)."""
    files = {"by hand": ResultFile(None, "full")}
    for at, seed, values in figures:
        keep(files, "by hand", {"key": "", "settings": {**at, "seed": seed}, "figures": values})
    return Results(files)


def test_passes_are_chosen_by_distance_to_the_published_accuracy():
    claims = Claims({"table_1": [{**point("cifar-10", "d-psgd", **s), "avg_accuracy": [40.0, 1.0]} for s in SETTINGS]})
    accuracy = {1: 30.0, 2: 38.0, 4: 41.0, 8: 45.0}
    figures = [
        (point("cifar-10", "d-psgd", **setting, local_passes=passes), 0, {"validation_accuracy": value})
        for setting in SETTINGS
        for passes, value in accuracy.items()
    ]
    curve = calibration(results_of(figures), claims, "cifar-10")
    assert [each.distance for each in curve] == [10.0, 2.0, 1.0, 5.0]
    assert chosen_passes(curve) == 4


def test_more_samples_are_shown_and_not_chosen():
    claims = Claims({"table_1": [{**point("cifar-10", "d-psgd", **s), "avg_accuracy": [40.0, 1.0]} for s in SETTINGS]})
    figures = []
    for setting in SETTINGS:
        few = point("cifar-10", "d-psgd", **setting, local_passes=1)
        many = point("cifar-10", "d-psgd", **setting, local_passes=2, samples_per_round=240)
        figures += [(few, 0, {"validation_accuracy": 30.0}), (many, 0, {"validation_accuracy": 40.0})]
    curve = calibration(results_of(figures), claims, "cifar-10")
    assert [each.samples for each in curve] == [None, 240]
    assert chosen_passes(curve) == 1


SETTINGS = settings_of_table_1()


def readings(gains):
    """Validation accuracy 50 everywhere, and `gains` by (words, data set) on top."""
    figures = []
    for dataset in DATASETS:
        for seed in range(5):
            figures.append((point(dataset, "hat-dfed"), seed, {"validation_accuracy": 50.0}))
            for reading in READINGS:
                gain = gains.get((reading.words, dataset), 0.0)
                wobble = 0.1 * (-1) ** seed
                at = point(dataset, "hat-dfed", **reading.settings)
                figures.append((at, seed, {"validation_accuracy": 50.0 + gain + wobble}))
    return results_of(figures)


def test_a_reading_is_chosen_if_both_data_sets_together_prefer_it():
    softmax, scores = "softmax, as printed", "softmax of z-scores"
    better = readings({(softmax, "fashion-mnist"): 2.0, (softmax, "cifar-10"): -1.0, (scores, "cifar-10"): 4.0})
    assert {number: reading.words for number, reading in chosen_readings(better, DATASETS).items()} == {"D7": scores}


def test_noise_and_losses_change_nothing():
    assert chosen_readings(readings({}), DATASETS) == {}
    assert chosen_readings(readings({("high loss first, as printed", "cifar-10"): -3.0}), DATASETS) == {}


def test_only_the_open_readings_are_chosen():
    better = readings({("240 samples a round", "fashion-mnist"): 9.0, ("probe of 50", "cifar-10"): 9.0})
    assert chosen_readings(better, DATASETS) == {}


def test_a_reading_that_one_data_set_lacks_is_not_chosen():
    better = readings({("softmax, as printed", "fashion-mnist"): 9.0})
    assert chosen_readings(better, (*DATASETS, "digits")) == {}


def test_nothing_is_chosen_by_what_the_test_set_says():
    """Figures of the test set may say what they like: choices look at validation accuracy."""
    figures = []
    for dataset in DATASETS:
        for seed in range(5):
            base = {"validation_accuracy": 50.0, "avg_accuracy": 50.0}
            figures.append((point(dataset, "hat-dfed"), seed, base))
            for reading in READINGS:
                at = point(dataset, "hat-dfed", **reading.settings)
                figures.append((at, seed, {"validation_accuracy": 49.0 + 0.1 * seed, "avg_accuracy": 90.0}))
    assert chosen_readings(results_of(figures), DATASETS) == {}


@pytest.mark.parametrize(
    ("interval", "published", "verdict"),
    [
        ((2.0, 1.0, 3.0), 1.9, REPRODUCED),
        ((5.0, 4.0, 6.0), 1.9, REPRODUCED),
        ((1.0, 0.5, 1.5), 1.9, PARTLY),
        ((1.0, -0.5, 2.5), 1.9, NOT),
        ((-3.0, -4.0, -2.0), 1.9, NOT),
        ((2.0, None, None), 1.9, NOT),
    ],
)
def test_a_claimed_difference_is_judged_by_its_interval(interval, published, verdict):
    assert judged(PairedDifference(*interval, 10), published) == verdict


@pytest.mark.parametrize(
    ("accuracy", "verdict"),
    [
        ({0.2: (50, 60), 0.3: (52, 62), 0.4: (51, 61)}, REPRODUCED),
        ({0.2: (50, 60), 0.3: (52, 62), 0.4: (51, 65)}, PARTLY),
        ({0.2: (50, 60), 0.3: (52, 62), 0.4: (55, 65)}, NOT),
    ],
)
def test_a_value_called_best_is_judged_against_the_best(accuracy, verdict):
    sweep = {value: {"link_share": value} for value in accuracy}
    figures = [
        (sweep[value], seed, {"avg_accuracy": float(figure)})
        for value, both in accuracy.items()
        for seed, figure in enumerate(both)
    ]
    (found,) = best_of_sweep("RQ2", "γ", results_of(figures), sweep, 0.3)
    assert found.verdict == verdict


def test_any_value_that_is_distinguishably_higher_speaks_against():
    """0.5 has the highest mean but varies; 0.4 is lower and surely above 0.3."""
    accuracy = {0.3: (50, 60, 70), 0.4: (52, 62, 72.1), 0.5: (40, 62, 90)}
    sweep = {value: {"link_share": value} for value in accuracy}
    figures = [
        (sweep[value], seed, {"avg_accuracy": float(figure)})
        for value, each in accuracy.items()
        for seed, figure in enumerate(each)
    ]
    (found,) = best_of_sweep("RQ2", "γ", results_of(figures), sweep, 0.3)
    assert found.verdict == NOT
    assert found.ours.startswith("0.5 is ahead")


@pytest.mark.parametrize(
    ("interval", "verdict"), [((0.5, 0.2, 0.8), REPRODUCED), ((0.9, 0.5, 1.3), PARTLY), ((2.0, 1.5, 2.5), NOT)]
)
def test_only_marginally(interval, verdict):
    (found,) = at_most("RQ2", "γ", PairedDifference(*interval, 10), 1.0, "points")
    assert found.verdict == verdict


def test_an_incomplete_calibration_chooses_nothing():
    claims = Claims({"table_1": [{**point("cifar-10", "d-psgd", **s), "avg_accuracy": [40.0, 1.0]} for s in SETTINGS]})
    figures = [
        (point("cifar-10", "d-psgd", **setting, local_passes=2), 0, {"validation_accuracy": 40.0})
        for setting in SETTINGS[:3]
    ]
    assert calibration(results_of(figures), claims, "cifar-10") == []
    assert chosen_passes([]) is None


def test_a_sweep_with_gaps_is_not_judged():
    assert list(best_of_sweep("RQ2", "γ", results_of([]), {0.3: {"link_share": 0.3}}, 0.3)) == []


def test_shares():
    assert [by_share(near, 8) for near in (8, 4, 3)] == [REPRODUCED, PARTLY, NOT]
