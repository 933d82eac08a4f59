"""The rule that chooses how `hat-dfed` reads the paper, on results made by hand."""

from tests.paper.made_results import results_by_seed

from hatdfed_paper.experiments.readings import READINGS, choose_readings
from hatdfed_paper.plan import point

DATASETS = ("fashion-mnist", "cifar-10")


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
    return results_by_seed(figures)


def test_a_reading_is_chosen_if_both_data_sets_together_prefer_it():
    softmax, scores = "softmax, as printed", "softmax of z-scores"
    better = readings({(softmax, "fashion-mnist"): 2.0, (softmax, "cifar-10"): -1.0, (scores, "cifar-10"): 4.0})
    assert {number: reading.words for number, reading in choose_readings(better, DATASETS).items()} == {"D7": scores}


def test_noise_and_losses_change_nothing():
    assert choose_readings(readings({}), DATASETS) == {}
    assert choose_readings(readings({("high loss first, as printed", "cifar-10"): -3.0}), DATASETS) == {}


def test_only_the_open_readings_are_chosen():
    better = readings({("240 samples a round", "fashion-mnist"): 9.0, ("probe of 50", "cifar-10"): 9.0})
    assert choose_readings(better, DATASETS) == {}


def test_a_reading_that_one_data_set_lacks_is_not_chosen():
    better = readings({("softmax, as printed", "fashion-mnist"): 9.0})
    assert choose_readings(better, (*DATASETS, "digits")) == {}


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
    assert choose_readings(results_by_seed(figures), DATASETS) == {}
