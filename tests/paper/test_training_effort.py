"""The plan of what kept uploads and decisions about training save."""

import pytest

from hatdfed.runs.statistics import paired_difference
from hatdfed.setup.layers import resolve
from hatdfed_paper.experiments.training_effort import (
    CLAIMED,
    EXPERIMENT,
    KEEP,
    judge,
    recipes,
    saving_markdown,
    saving_rows,
)
from hatdfed_paper.plan import FULL, PLUS, SMOKE
from hatdfed_paper.results import ResultFile, Results


def made_results(tmp_path, figures):
    """Packed results with these figures of a recipe: accuracy and energy."""
    file = ResultFile(tmp_path / "training_effort.json", SMOKE.name)
    by_change = {str((method, changed)): name for name, (method, changed) in recipes().items()}
    for settings in EXPERIMENT.runs(SMOKE):
        changed = {key: settings[key] for key in ("uploads", "training") if key in settings}
        accuracy, energy = figures(by_change[str((settings["method"], changed))], settings["seed"])
        names = ("best_accuracy", "worst_accuracy", "std_accuracy", "link_energy_mj")
        record = {"avg_accuracy": accuracy, "total_energy_mj": energy, **dict.fromkeys(names, 1.0)}
        file.records[str(settings)] = {"settings": settings, "key": "", "figures": record, "curve": {}}
    return Results({"training_effort": file})


def test_the_plan_is_as_large_as_it_says():
    runs = EXPERIMENT.runs(FULL)
    assert len(runs) == 1600
    assert {each["seed"] for each in runs} == set(range(400, 410))
    assert sum(resolve(each).servers * resolve(each).rounds for each in runs[::100]) == 16 * 1000


def test_a_trial_of_the_plan_does_not_use_its_seeds():
    assert {each["seed"] for each in EXPERIMENT.runs(SMOKE)} == {0, 1}


def test_all_recipes_are_charged_alike():
    for settings in EXPERIMENT.all_points(FULL):
        config = resolve({**settings, "seed": 0})
        assert config.energy.training_per == settings["energy"]["training_per"]


def test_what_decisions_save_is_told_apart_from_what_keeping_saves(tmp_path):
    energies = {PLUS: 10.0, KEEP: 8.0, f"{KEEP}, {CLAIMED}": 6.0}
    results = made_results(tmp_path, lambda recipe, seed: (80.0 + seed, energies.get(recipe, 20.0)))
    rows = {(row["charged_per"], row["recipe"]): row for row in saving_rows(results, None, SMOKE)}
    assert len(rows) == 2 * len(recipes())
    assert rows["pass", KEEP]["saved_percent"]["mean"] == pytest.approx(20)
    assert rows["pass", f"{KEEP}, {CLAIMED}"]["saved_percent"]["mean"] == pytest.approx(25)
    assert rows["pass", f"{KEEP}, {CLAIMED}"]["against"] == KEEP
    assert rows["sample", KEEP]["holds"] is None
    assert "taper 0.6 to 2" in saving_markdown(list(rows.values()))


def difference(*values):
    return paired_difference(dict(enumerate(values)), dict.fromkeys(range(len(values)), 0.0))


def test_a_loss_or_no_saving_is_not_a_saving_without_loss():
    recipe, saved = f"{KEEP}, {CLAIMED}", difference(20.0, 21.0, 22.0)
    assert judge(recipe, "pass", difference(0.1, 0.0, -0.1), saved) is True
    assert judge(recipe, "pass", difference(-1.0, -1.1, -0.9), saved) is False
    assert judge(recipe, "pass", difference(0.1, 0.0, -0.1), difference(-1.0, 0.5, 1.0)) is False
    assert judge(KEEP, "pass", difference(0.0, 0.0, 0.0), saved) is True
    assert judge(KEEP, "pass", difference(0.1, 0.0, -0.1), saved) is True  # a GPU rounds otherwise in other batches
    assert judge(KEEP, "pass", difference(-1.0, -1.1, -0.9), saved) is False
    assert judge(KEEP, "pass", difference(-9.0, 0.0, 9.0), saved) is False  # too uncertain to rule a loss out
    assert judge(KEEP, "pass", difference(-0.2, -0.21, -0.19), saved) is False  # small, but there
    assert judge("rnd", "pass", difference(0.0, 0.0, 0.0), saved) is None
