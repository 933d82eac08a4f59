"""The rules that choose, and the rules that judge, on results made by hand."""

import pytest

from hatdfed.paper.choices import calibration, chosen_passes, chosen_readings, worth_of_readings
from hatdfed.paper.claims import Claims
from hatdfed.paper.plans import READINGS, point, settings_of_table_1
from hatdfed.paper.results import ResultFile, Results
from hatdfed.paper.verdict_rules import NOT, PARTLY, REPRODUCED, best_of_sweep, by_share, judged
from hatdfed.statistics import PairedDifference

DATASETS = ("fashion-mnist", "cifar-10")


def results_of(figures):
    """Results from (point, seed, figures)."""
    file = ResultFile(None, "full")
    for at, seed, values in figures:
        file.add({"key": "", "settings": {**at, "seed": seed}, "figures": values})
    return Results({"by hand": file})


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
    return worth_of_readings(results_of(figures), DATASETS)


def test_a_reading_is_chosen_if_both_data_sets_together_prefer_it():
    softmax, scores = "softmax, as printed", "softmax of z-scores"
    better = readings({(softmax, "fashion-mnist"): 2.0, (softmax, "cifar-10"): -1.0, (scores, "cifar-10"): 4.0})
    assert {number: reading.words for number, reading in chosen_readings(better).items()} == {"D7": scores}


def test_noise_and_losses_change_nothing():
    assert chosen_readings(readings({})) == {}
    assert chosen_readings(readings({("high loss first, as printed", "cifar-10"): -3.0})) == {}


def test_only_the_open_readings_are_chosen():
    assert (
        chosen_readings(readings({("240 samples a round", "fashion-mnist"): 9.0, ("probe of 50", "cifar-10"): 9.0}))
        == {}
    )


def test_a_reading_that_one_data_set_lacks_is_not_chosen():
    worth = [each._replace(together=None) for each in readings({("softmax, as printed", "cifar-10"): 9.0})]
    assert chosen_readings(worth) == {}


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


def test_a_sweep_with_gaps_is_not_judged():
    assert list(best_of_sweep("RQ2", "γ", results_of([]), {0.3: {"link_share": 0.3}}, 0.3)) == []


def test_shares():
    assert [by_share(near, 8) for near in (8, 4, 3)] == [REPRODUCED, PARTLY, NOT]
