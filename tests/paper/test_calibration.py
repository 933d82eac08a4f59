"""The rule that chooses how much local work there is, on results made by hand."""

from tests.paper.made_results import results_by_seed

from hatdfed_paper.claims import Claims
from hatdfed_paper.experiments.calibration import calibrate, choose_passes
from hatdfed_paper.plan import point, settings_of_table_1

SETTINGS = settings_of_table_1()


def test_passes_are_chosen_by_distance_to_the_published_accuracy():
    claims = Claims({"table_1": [{**point("cifar-10", "d-psgd", **s), "avg_accuracy": [40.0, 1.0]} for s in SETTINGS]})
    accuracy = {1: 30.0, 2: 38.0, 4: 41.0, 8: 45.0}
    figures = [
        (point("cifar-10", "d-psgd", **setting, local_passes=passes), 0, {"validation_accuracy": value})
        for setting in SETTINGS
        for passes, value in accuracy.items()
    ]
    curve = calibrate(results_by_seed(figures), claims, "cifar-10")
    assert [each.distance for each in curve] == [10.0, 2.0, 1.0, 5.0]
    assert choose_passes(curve) == 4


def test_more_samples_are_shown_and_not_chosen():
    claims = Claims({"table_1": [{**point("cifar-10", "d-psgd", **s), "avg_accuracy": [40.0, 1.0]} for s in SETTINGS]})
    figures = []
    for setting in SETTINGS:
        few = point("cifar-10", "d-psgd", **setting, local_passes=1)
        many = point("cifar-10", "d-psgd", **setting, local_passes=2, samples_per_round=240)
        figures += [(few, 0, {"validation_accuracy": 30.0}), (many, 0, {"validation_accuracy": 40.0})]
    curve = calibrate(results_by_seed(figures), claims, "cifar-10")
    assert [each.samples for each in curve] == [None, 240]
    assert choose_passes(curve) == 1


def test_an_incomplete_calibration_chooses_nothing():
    claims = Claims({"table_1": [{**point("cifar-10", "d-psgd", **s), "avg_accuracy": [40.0, 1.0]} for s in SETTINGS]})
    figures = [
        (point("cifar-10", "d-psgd", **setting, local_passes=2), 0, {"validation_accuracy": 40.0})
        for setting in SETTINGS[:3]
    ]
    assert calibrate(results_by_seed(figures), claims, "cifar-10") == []
    assert choose_passes([]) is None
