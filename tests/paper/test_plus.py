"""hat-dfed-plus against the other methods, what it reaches, and the figure of what accuracy costs, made by hand."""

import pytest
from tests.paper.made_results import results_of

from hatdfed_paper.claims import Claims
from hatdfed_paper.experiments import EXPERIMENTS
from hatdfed_paper.experiments.equal_footing import equal_footing, without_thrift
from hatdfed_paper.experiments.plus import AS_IT_IS, DENSE, EQUAL, front_panels, summary_markdown, summary_rows
from hatdfed_paper.figures import figure_data, figure_title, write_figures
from hatdfed_paper.plan import BASELINES, PLUS, SMOKE, Scale, point, settings_of_table_1
from hatdfed_paper.tables import all_markdown

ONE = Scale("smoke", ("digits",), seeds=2, servers=(5,))
CLAIMS = Claims({"sparsity": [], "sensitivity": {"best_alpha": 0.6, "best_beta": 0.4}})
BASE = {"var_accuracy": 1.0, "std_accuracy": 1.0, "best_accuracy": 60.0, "worst_accuracy": 40.0}
NEAR = {"avg_accuracy": 80.0, "total_energy_mj": 1.0, "link_energy_mj": 0.5}
CAUSES = {"link_energy_mj": 8.0, "training_energy_mj": 1.5, "upload_energy_mj": 0.5}


# Against every method as it is


def against_all(runs):
    (table,) = [table for table in EXPERIMENTS["plus"].tables if table.name == "plus"]
    made = results_of([(settings, {**BASE, **figures}) for settings, figures in runs], seeds=(0, 1), step=1.0)
    return table.rows(made, CLAIMS, SMOKE)


def test_plus_is_held_against_the_mean_of_the_four_baselines_and_each_method_against_it():
    accuracy = {"rnd": 50.0, "d-psgd": 52.0, "dac": 54.0, "sgp": 56.0, "hat-dfed": 48.0, "hat-dfed-plus-0.1": 60.0}
    runs = [
        (point("digits", method), {"avg_accuracy": value, "total_energy_mj": 10.0, "link_energy_mj": 8.0})
        for method, value in accuracy.items()
    ]
    rows = {row["method"]: row for row in against_all(runs)}
    assert set(rows) == set(accuracy)
    assert rows["hat-dfed-plus-0.1"]["plus_is_ahead_by"]["avg_accuracy_points"]["mean"] == pytest.approx(7.0)
    assert rows["hat-dfed"]["plus_is_ahead_by"]["avg_accuracy_points"]["mean"] == pytest.approx(12.0)
    assert rows["sgp"]["plus_is_ahead_by"]["total_energy_percent"]["mean"] == pytest.approx(0.0)
    assert rows["hat-dfed-plus-0.1"]["plus_is_ahead_by"]["worst_over_best_points"]["mean"] == pytest.approx(-20.0)
    assert rows["hat-dfed-plus-0.1"]["every"] == 2
    assert rows["rnd"]["every"] == 1


def test_without_plus_there_is_nothing_to_say():
    runs = [(point("digits", "rnd"), {"avg_accuracy": 50.0, "total_energy_mj": 1.0, "link_energy_mj": 1.0})]
    assert against_all(runs) == []


# The summary


def summary(runs):
    return summary_rows(results_of(runs, seeds=(0, 1), step=0.5), CLAIMS, ONE)


def figures(accuracy, joules, best=None, worst=None):
    ends = {"best_accuracy": best or accuracy + 2, "worst_accuracy": worst or accuracy - 2}
    return {"avg_accuracy": accuracy, "total_energy_mj": joules, "link_energy_mj": joules / 2, **ends}


def as_it_is(level=80.0, setting=None, joules=2.0):
    """The four at 70 to 73, and hat-dfed-plus at this level."""
    rivals = [(point("digits", name, **(setting or {})), figures(70.0 + k, 10.0)) for k, name in enumerate(BASELINES)]
    return [*rivals, (point("digits", PLUS, **(setting or {})), figures(level, joules))]


def test_it_is_held_against_the_mean_of_the_four():
    (row,) = summary(as_it_is())
    assert row["avg_accuracy_points"]["mean"] == pytest.approx(80.0 - 71.5)
    assert row["total_energy_percent"]["mean"] == pytest.approx(100 * (1 - (0.2 + 2.5 / 10.5) / 2), abs=1e-3)
    assert (row["settings"], row["seeds"], row["equal_footing"], row["dense"]) == (1, [0, 1], None, None)


def test_settings_are_counted_in_which_it_is_as_good_as_the_best():
    first, second = settings_of_table_1()[:2]
    (row,) = summary([*as_it_is(80.0, first), *as_it_is(72.0, second)])
    assert (row["settings"], row["as_accurate_as_the_best"]) == (2, 1)
    assert row["avg_accuracy_points"]["mean"] == pytest.approx((8.5 + 0.5) / 2)
    (behind,) = row["behind"]
    assert (behind["method"], behind["mean"], behind["setting"]) == (BASELINES[-1], -1.0, "λ 0.3, ρ 0.9")


@pytest.mark.parametrize(("level", "count"), [(80.0, 1), (76.0, 0)])
def test_its_worst_server_is_held_against_the_best_server_of_every_baseline(level, count):
    (row,) = summary(as_it_is(level))  # 78 or 74 against 75
    assert row["worst_over_best"] == count


@pytest.mark.parametrize(("accuracy", "count"), [(79.0, 1), (80.0, 1), (81.0, 0)])
def test_equal_footing_counts_what_is_not_wholly_below(accuracy, count):
    equal = [(point("digits", name, **equal_footing(name, "digits", 5)), figures(accuracy, 2.0)) for name in BASELINES]
    (row,) = summary([*as_it_is(), *equal])
    assert row["equal_footing"]["not_below"] == count
    assert len(row["equal_footing"]["below"]) == 1 - count


def test_the_largest_gap_to_the_dense_ones_has_its_setting():
    runs = []
    for setting, level in zip(settings_of_table_1(), (81.0, 83.0, 80.5, 79.0), strict=True):
        runs += as_it_is(80.0, setting)
        given = without_thrift("digits")
        runs += [(point("digits", name, **setting, **given), figures(level, 20.0)) for name in BASELINES]
    (row,) = summary(runs)
    gap = row["dense"]["largest_gap"]
    assert (gap["mean"], gap["setting"]) == (-3.0, "λ 0.3, ρ 0.9")
    assert row["dense"]["mean"]["mean"] == pytest.approx(-(1.0 + 3.0 + 0.5 - 1.0) / 4)


def test_a_setting_in_which_a_baseline_is_missing_does_not_count():
    assert summary(as_it_is()[1:]) == []
    assert summary_markdown([]) == ""


def test_a_summary_has_a_column_for_each_fleet():
    text = summary_markdown(summary(as_it_is()))
    assert "digits, N = 5" in text
    assert "+8.5 (+8.5 to +8.5) points" in text


# What accuracy costs


def everything(experiments):
    return {str(each): each for name in experiments for each in EXPERIMENTS[name].all_points(SMOKE)}.values()


def test_every_way_to_play_the_methods_has_its_line():
    runs = [(each, NEAR) for each in everything(["plus", "plus_equal", "plus_dense"])]
    for panel in front_panels(results_of(runs), CLAIMS, "digits", SMOKE):
        methods = {line["name"]: line["methods"] for line in panel["lines"]}
        five = [*BASELINES, "hat-dfed"]
        assert methods == {AS_IT_IS: five, EQUAL: five, DENSE: list(BASELINES), PLUS: [PLUS]}


def test_what_was_not_played_is_left_out():
    without_plus = [(each, NEAR) for each in everything(["plus"]) if each["method"] != PLUS]
    assert all(panel["lines"] == [] for panel in front_panels(results_of(without_plus), CLAIMS, "digits", SMOKE))
    first, *others = front_panels(results_of([(point("digits", PLUS), NEAR)]), CLAIMS, "digits", SMOKE)
    assert [line["name"] for line in first["lines"]] == [PLUS]
    assert all(panel["lines"] == [] and panel["front"] == [] for panel in others)


def test_the_front_is_what_nothing_beats_at_both():
    figures = {"rnd": (70.0, 3.0), "sgp": (82.0, 4.0), PLUS: (80.0, 1.0)}
    runs = [(point("digits", name), {"avg_accuracy": a, "total_energy_mj": e}) for name, (a, e) in figures.items()]
    panel = front_panels(results_of(runs), CLAIMS, "digits", SMOKE)[0]
    names = [panel["lines"][line]["methods"][place] for line, place in panel["front"]]
    assert names == [PLUS, "sgp"]


def test_the_title_of_the_front_follows_from_the_numbers():
    figures = {"rnd": (70.0, 4.0), "sgp": (78.0, 5.0), "hat-dfed": (60.0, 2.0), PLUS: (80.0, 1.0)}
    runs = [
        (point("digits", name), {**NEAR, "avg_accuracy": accuracy, "total_energy_mj": energy})
        for name, (accuracy, energy) in figures.items()
    ]
    data = figure_data(results_of(runs), CLAIMS, Scale("smoke", ("digits",), seeds=1, servers=(5,)))["front-digits.png"]
    expected = "hat-dfed-plus-0.1 ends 2.0 to 10.0 points above the baselines with 20 to 25 % of their energy"
    assert figure_title(data) == f"Digits: {expected}"


def test_both_can_be_drawn(tmp_path):
    of_front = [(each, NEAR) for each in everything(["plus", "plus_equal"]) if each["label_concentration"] == 0.3]
    scale = Scale("smoke", ("digits", "cifar-10"), seeds=1, servers=(5,))
    runs = [*of_front, *((point("cifar-10", name), {**CAUSES, **NEAR}) for name in (*BASELINES, PLUS))]
    files = write_figures(results_of(runs), CLAIMS, scale, tmp_path)
    names = {"front-digits.png", "front-cifar-10.png", "regimes-cifar-10.png"}
    assert names <= {path.name for path in files}
    assert all((tmp_path / name).read_bytes().startswith(b"\x89PNG") for name in names)


def test_without_rows_there_is_no_table():
    names = [table.name for experiment in EXPERIMENTS.values() for table in experiment.tables]
    assert all_markdown(dict.fromkeys(names, ())) == {}
