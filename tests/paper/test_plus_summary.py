"""What hat-dfed-plus reaches, and how its parts were chosen, from figures made by hand."""

import pytest

from hatdfed_paper.equal_footing import equal_footing, without_thrift
from hatdfed_paper.plans import BASELINES, SMOKE, Scale, point, points, settings_of_table_1
from hatdfed_paper.plus_choice import LINKS_AT_MOST, allowed_link_mj
from hatdfed_paper.plus_figure_data import PLUS
from hatdfed_paper.plus_markdown import plus_markdown, searches, summary
from hatdfed_paper.plus_plans import SWEEPS
from hatdfed_paper.plus_summary import plus_summary
from hatdfed_paper.plus_tables import plus_tables
from hatdfed_paper.results import ResultFile, Results, keep
from hatdfed_paper.search_table import search_table

ONE = Scale("smoke", ("digits",), seeds=2, servers=(5,))


def results_of(runs):
    files = {"by hand": ResultFile(None, "smoke")}
    for settings, figures in runs:
        for seed in (0, 1):
            spread = {name: value + 0.5 * seed for name, value in figures.items()}
            keep(files, "by hand", {"key": "", "settings": {**settings, "seed": seed}, "figures": spread})
    return Results(files)


def figures(accuracy, joules, best=None, worst=None):
    ends = {"best_accuracy": best or accuracy + 2, "worst_accuracy": worst or accuracy - 2}
    return {"avg_accuracy": accuracy, "total_energy_mj": joules, "link_energy_mj": joules / 2, **ends}


def as_it_is(level=80.0, setting=None, joules=2.0):
    """The four at 70 to 73, and hat-dfed-plus at this level."""
    rivals = [(point("digits", name, **(setting or {})), figures(70.0 + k, 10.0)) for k, name in enumerate(BASELINES)]
    return [*rivals, (point("digits", PLUS, **(setting or {})), figures(level, joules))]


def test_it_is_held_against_the_mean_of_the_four():
    (row,) = plus_summary(results_of(as_it_is()), ONE)
    assert row["avg_accuracy_points"]["mean"] == pytest.approx(80.0 - 71.5)
    assert row["total_energy_percent"]["mean"] == pytest.approx(100 * (1 - (0.2 + 2.5 / 10.5) / 2), abs=1e-3)
    assert (row["settings"], row["seeds"], row["equal_footing"], row["dense"]) == (1, [0, 1], None, None)


def test_settings_are_counted_in_which_it_is_as_good_as_the_best():
    first, second = settings_of_table_1()[:2]
    (row,) = plus_summary(results_of([*as_it_is(80.0, first), *as_it_is(72.0, second)]), ONE)
    assert (row["settings"], row["as_accurate_as_the_best"]) == (2, 1)
    assert row["avg_accuracy_points"]["mean"] == pytest.approx((8.5 + 0.5) / 2)
    (behind,) = row["behind"]
    assert (behind["method"], behind["mean"], behind["setting"]) == (BASELINES[-1], -1.0, "λ 0.3, ρ 0.9")


@pytest.mark.parametrize(("level", "count"), [(80.0, 1), (76.0, 0)])
def test_its_worst_server_is_held_against_the_best_server_of_every_baseline(level, count):
    (row,) = plus_summary(results_of(as_it_is(level)), ONE)  # 78 or 74 against 75
    assert row["worst_over_best"] == count


@pytest.mark.parametrize(("accuracy", "count"), [(79.0, 1), (80.0, 1), (81.0, 0)])
def test_equal_footing_counts_what_is_not_wholly_below(accuracy, count):
    equal = [(point("digits", name, **equal_footing(name, "digits", 5)), figures(accuracy, 2.0)) for name in BASELINES]
    (row,) = plus_summary(results_of([*as_it_is(), *equal]), ONE)
    assert row["equal_footing"]["not_below"] == count
    assert len(row["equal_footing"]["below"]) == 1 - count


def test_the_largest_gap_to_the_dense_ones_has_its_setting():
    runs = []
    for setting, level in zip(settings_of_table_1(), (81.0, 83.0, 80.5, 79.0), strict=True):
        runs += as_it_is(80.0, setting)
        given = without_thrift("digits")
        runs += [(point("digits", name, **setting, **given), figures(level, 20.0)) for name in BASELINES]
    (row,) = plus_summary(results_of(runs), ONE)
    gap = row["dense"]["largest_gap"]
    assert (gap["mean"], gap["setting"]) == (-3.0, "λ 0.3, ρ 0.9")
    assert row["dense"]["mean"]["mean"] == pytest.approx(-(1.0 + 3.0 + 0.5 - 1.0) / 4)


def test_a_setting_in_which_a_baseline_is_missing_does_not_count():
    assert plus_summary(results_of(as_it_is()[1:]), ONE) == []
    assert summary([]) == ""


def test_a_summary_has_a_column_for_each_fleet():
    text = summary(plus_summary(results_of(as_it_is()), ONE))
    assert "digits, N = 5" in text
    assert "+8.5 (+8.5 to +8.5) points" in text


def test_the_search_says_what_was_tried_chosen_and_too_dear():
    found = {str(each): each for each in points("plus_search", SMOKE)}.values()
    runs = []
    for each in found:
        better = 2.0 if each.get("learner", {}).get("cool_down") == 0.25 else 0.0
        dear = 9.0 if each["codec"] == "float32" else 0.1
        runs.append((each, {"validation_accuracy": 50.0 + better, "link_energy_mj": dear}))
    baselines = [
        (point("digits", name, **setting), {"link_energy_mj": 50.0})
        for name in BASELINES
        for setting in settings_of_table_1()
    ]
    rows = search_table(results_of([*runs, *baselines]), SMOKE)
    assert [row["words"] for row in rows if row["is_chosen"]] == ["steps become shorter over the last quarter"]
    assert [row["words"] for row in rows if not row["is_allowed"]] == ["float32"]
    assert {row["sweep"] for row in rows} == {"plus_search"}  # the others have not been played
    assert "**chosen**" in searches(rows)["plus_search"]


def test_a_sweep_has_a_limit_where_all_baselines_were_played():
    places = [*settings_of_table_1(), {"servers": 20}, {"servers": 50}]
    baselines = [
        (point("digits", name, **place), {"link_energy_mj": 5.0 * place.get("servers", 5)})
        for name in BASELINES
        for place in places
    ]
    everywhere, not_everywhere = results_of(baselines), results_of(baselines[:-1])
    five, many = SWEEPS["plus_search"], SWEEPS["plus_search_many"]
    assert allowed_link_mj(everywhere, SMOKE, five) == pytest.approx(LINKS_AT_MOST * 25, rel=0.02)
    assert allowed_link_mj(everywhere, SMOKE, many) == pytest.approx(LINKS_AT_MOST * 175, rel=0.02)
    assert allowed_link_mj(not_everywhere, SMOKE, five) == pytest.approx(LINKS_AT_MOST * 25, rel=0.02)
    assert allowed_link_mj(not_everywhere, SMOKE, many) == float("inf")


def test_without_rows_there_is_no_table():
    names = ("plus_summary", "plus_search", "plus_energy_split", "regimes", *plus_tables(Results({}), SMOKE))
    assert set(plus_markdown(dict.fromkeys(names, ())).values()) == {""}
