"""The plan of SkipTrain's experiment: its phones, its graphs, and equal watt-hours."""

import numpy as np
import pytest

from hatdfed.core.training.skip_train import SkipTrain
from hatdfed.runs.statistics import paired_difference
from hatdfed.setup.build.machines import find_profiles
from hatdfed.setup.layers import resolve
from hatdfed_paper.experiments.skip_train import (
    CYCLES,
    EXPERIMENT,
    GREEDY,
    OURS,
    RIVALS,
    SKIP,
    SKIP_IN_BUDGET,
    graph_markdown,
    graph_rows,
    judge,
    lines,
    place,
)
from hatdfed_paper.plan import FULL, SMOKE
from hatdfed_paper.results import ResultFile, Results


def config_of(degree, method, scale=FULL):
    return resolve({**place("cifar-10" if scale == FULL else "digits", degree, method, scale), "seed": 0})


def test_the_plan_is_as_large_as_it_says():
    runs = EXPERIMENT.runs(FULL)
    assert len(runs) == 3 * (3 * 3 + 3)
    assert {run["dataset"] for run in runs} == {"cifar-10"}
    assert {run["seed"] for run in runs} == {400, 401, 402}
    assert {each["seed"] for each in EXPERIMENT.runs(SMOKE)} == {0, 1}


def test_1000_rounds_of_training_take_the_published_1510_watt_hours():
    config = config_of(6, "d-psgd")
    images = config.samples_per_round * config.local_passes
    assert images == 20 * 32
    joules = [images * each.find_sample_joules(0.0) for each in find_profiles(config, 256)]
    assert 1000 * sum(joules) / 3600 == pytest.approx(1510, abs=1)


@pytest.mark.parametrize(("phone", "watt_hours"), list(enumerate([1.78, 1.94, 1.741, 2.32])))
def test_a_budget_is_a_tenth_of_the_phones_battery(phone, watt_hours):
    config = config_of(6, SKIP_IN_BUDGET)
    joules = 640 * find_profiles(config, 4)[phone].find_sample_joules(0.0)
    rounds = config.training.settings["budget_rounds"][phone]
    assert rounds == round(config.rounds / 1000 * (3600 * watt_hours // joules))


def test_ours_train_in_the_same_rounds_on_the_same_graph_as_their_rivals():
    for degree in CYCLES:
        for method, rival in RIVALS.items():
            mine, theirs = config_of(degree, method), config_of(degree, rival)
            for name in (
                "training",
                "policy",
                "network",
                "local_passes",
                "samples_per_round",
                "batch_size",
                "machines",
            ):
                assert getattr(mine, name) == getattr(theirs, name), name
            assert mine.learner.model_copy(update={"cool_down": 0.0}) == theirs.learner
            assert mine.loss.name == "label-prior"
            assert mine.schedule == theirs.schedule


def test_cycles_end_with_the_run():
    for degree, (train, sync) in CYCLES.items():
        assert config_of(degree, SKIP).rounds % (train + sync) == 0


def test_greedy_has_the_budget_of_the_constrained_methods():
    greedy, constrained = (config_of(8, method).training.settings for method in (GREEDY, SKIP_IN_BUDGET))
    assert greedy["budget_rounds"] == constrained["budget_rounds"]
    policy = SkipTrain(**{**greedy, "budget_rounds": tuple(greedy["budget_rounds"])})
    assert not policy.spread
    assert policy.sync_rounds == 0


def made_results(tmp_path, accuracies):
    file = ResultFile(tmp_path / "skip_train.json", SMOKE.name)
    names = {str(place("digits", *line, SMOKE)): line[1] for line in lines()}
    for settings in EXPERIMENT.runs(SMOKE):
        method = names[str({name: value for name, value in settings.items() if name != "seed"})]
        figures = {
            "avg_accuracy": accuracies[method] + settings["seed"],
            "training_energy_mj": 0.0036,
            "total_energy_mj": 0.0072,
        }
        file.records[str(settings)] = {"settings": settings, "key": "", "figures": figures, "curve": {}}
    return Results({"skip_train": file})


def test_joules_become_watt_hours_and_ours_are_held_against_their_rival(tmp_path):
    results = made_results(tmp_path, dict.fromkeys((method for _, method in lines()), 40.0) | {OURS: 50.0})
    rows = graph_rows(results, None, SMOKE)
    assert len(rows) == 12
    (row,) = [each for each in rows if each["method"] == OURS and each["degree"] == 8]
    assert row["against"] == SKIP
    assert row["accuracy_points"]["mean"] == pytest.approx(10)
    assert row["holds"] is True
    assert row["training_wh"][0] == pytest.approx(1)
    assert row["total_wh"][0] == pytest.approx(2)
    assert row["training_wh_in_1000_rounds"][0] == pytest.approx(1000 / 12, abs=0.1)
    assert "skip-train, budget" in graph_markdown(rows)


def test_more_watt_hours_or_no_clear_gain_are_not_enough():
    ahead, unclear = (
        paired_difference(dict(enumerate(values)), dict.fromkeys(range(3), 0.0))
        for values in ((4.0, 5.0, 6.0), (-1.0, 5.0, 1.0))
    )
    same = dict.fromkeys(range(3), 10.0)
    assert judge(ahead, same, same) is True
    assert judge(unclear, same, same) is False
    assert judge(ahead, {**same, 2: np.nextafter(10.1, 11)}, same) is False
    assert judge(paired_difference({0: 5.0}, {0: 0.0}), same, same) is None
