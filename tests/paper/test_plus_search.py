"""The search for a recipe, and the rule that makes it, on figures made by hand."""

import pytest
from tests.paper.made_results import results_of

from hatdfed_paper.claims import Claims
from hatdfed_paper.experiments import EXPERIMENTS
from hatdfed_paper.experiments.plus_search import (
    CHANGES,
    FIRST_GUESS,
    LINKS_AT_MOST,
    SWEEPS,
    Tried,
    allowed_link_mj,
    choose_changes,
    choose_recipe,
    markdown_by_sweep,
)
from hatdfed_paper.plan import BASELINES, FULL, SMOKE, point, settings_of_table_1

SWEEP = SWEEPS["plus_search"]
WOBBLE = (0.1, -0.1, 0.2, -0.2, 0.0)


def values(accuracy, link_mj, change=None, noise=1.0):
    by_seed = {world: accuracy + noise * WOBBLE[world] * (1 if change else 0) for world in range(5)}
    return Tried(change, {str(world): value for world, value in by_seed.items()}, by_seed, link_mj)


def change(part, words):
    (found,) = [each for each in CHANGES if each.part == part and words in each.words]
    return found


def test_what_is_not_better_changes_nothing():
    found = [values(50.0, 1.0), *(values(50.0, 1.0, each) for each in CHANGES if not each.saves)]
    assert choose_changes(found) == []
    assert choose_recipe(SWEEP, found) == FIRST_GUESS


def test_a_part_for_accuracy_is_changed_if_it_is_distinguishably_better():
    better, noisy = change("finish", "10 rounds"), change("loss", "plain")
    found = [values(50.0, 1.0), values(51.0, 5.0, better), values(50.5, 1.0, noisy, noise=20.0)]
    assert choose_changes(found) == [better]
    assert choose_recipe(SWEEP, found)["schedule"] == {"every": 4, "finish_rounds": 10}


def test_of_several_the_best_is_taken():
    some = [change("merge", "by samples"), change("merge", "by importance")]
    found = [values(50.0, 1.0), values(51.0, 1.0, some[0]), values(52.0, 1.0, some[1])]
    assert choose_changes(found) == [some[1]]


def test_a_part_that_saves_takes_the_cheapest_that_is_as_good():
    eighth, sixteenth = change("every", "eighth"), change("every", "sixteenth")
    found = [values(50.0, 1.0), values(50.0, 0.5, eighth), values(48.0, 0.2, sixteenth)]
    assert choose_changes(found) == [eighth]
    found = [values(50.0, 1.0), values(49.0, 0.5, eighth), values(48.0, 0.2, sixteenth)]
    assert choose_changes(found) == []


def test_a_dearer_value_is_taken_if_the_first_guess_is_much_worse():
    single = change("every", "single")
    found = [values(50.0, 1.0), values(53.0, 4.0, single)]
    assert choose_changes(found) == [single]


def test_what_costs_more_than_allowed_is_not_considered():
    second, third = change("every", "second"), change("every", "third")
    found = [values(50.0, 1.0), values(53.0, 2.0, second), values(52.0, 1.4, third)]
    assert choose_changes(found) == [second]
    assert choose_changes(found, allowed_mj=1.5) == [third]
    assert choose_changes(found, allowed_mj=1.2) == []


def test_the_search_has_worlds_of_its_own():
    tables = {
        settings["seed"] for name in ("table1", "readings", "calibration") for settings in EXPERIMENTS[name].runs(FULL)
    }
    assert {settings["seed"] for settings in EXPERIMENTS["plus_search"].runs(FULL)}.isdisjoint(tables)
    assert len(EXPERIMENTS["plus_search"].all_points(FULL)) == 2 * 2 * (1 + len(CHANGES))


def made(runs):
    return results_of(runs, seeds=(0, 1), step=0.5)


def test_the_search_says_what_was_tried_chosen_and_too_dear():
    found = {str(each): each for each in EXPERIMENTS["plus_search"].all_points(SMOKE)}.values()
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
    (table,) = EXPERIMENTS["plus_search"].tables
    rows = table.rows(made([*runs, *baselines]), Claims({}), SMOKE)
    assert [row["words"] for row in rows if row["is_chosen"]] == ["steps become shorter over the last quarter"]
    assert [row["words"] for row in rows if not row["is_allowed"]] == ["float32"]
    assert {row["sweep"] for row in rows} == {"plus_search"}  # the others have not been played
    assert "**chosen**" in markdown_by_sweep(rows)["plus_search"]


def test_a_sweep_has_a_limit_where_all_baselines_were_played():
    places = [*settings_of_table_1(), {"servers": 20}, {"servers": 50}]
    baselines = [
        (point("digits", name, **place), {"link_energy_mj": 5.0 * place.get("servers", 5)})
        for name in BASELINES
        for place in places
    ]
    everywhere, not_everywhere = made(baselines), made(baselines[:-1])
    five, many = SWEEPS["plus_search"], SWEEPS["plus_search_many"]
    assert allowed_link_mj(everywhere, SMOKE, five) == pytest.approx(LINKS_AT_MOST * 25, rel=0.02)
    assert allowed_link_mj(everywhere, SMOKE, many) == pytest.approx(LINKS_AT_MOST * 175, rel=0.02)
    assert allowed_link_mj(not_everywhere, SMOKE, five) == pytest.approx(LINKS_AT_MOST * 25, rel=0.02)
    assert allowed_link_mj(not_everywhere, SMOKE, many) == float("inf")
