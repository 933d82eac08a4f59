"""The rule that makes the recipe, on figures made by hand."""

from hatdfed.setup.layers import merge_layers
from hatdfed_paper.plans import FULL, points, runs
from hatdfed_paper.plus_choice import Tried, chosen_changes, recipe
from hatdfed_paper.plus_plans import CHANGES, FIRST_GUESS, SWEEPS, without_each_part

SWEEP = SWEEPS["plus_search"]
WOBBLE = (0.1, -0.1, 0.2, -0.2, 0.0)


def values(accuracy, link_mj, change=None, noise=1.0):
    return Tried(
        change, {str(world): accuracy + noise * WOBBLE[world] * (1 if change else 0) for world in range(5)}, link_mj
    )


def change(part, words):
    (found,) = [each for each in CHANGES if each.part == part and words in each.words]
    return found


def test_what_is_not_better_changes_nothing():
    found = [values(50.0, 1.0), *(values(50.0, 1.0, each) for each in CHANGES if not each.saves)]
    assert chosen_changes(found) == []
    assert recipe(SWEEP, found) == FIRST_GUESS


def test_a_part_for_accuracy_is_changed_if_it_is_distinguishably_better():
    better, noisy = change("finish", "10 rounds"), change("loss", "plain")
    found = [values(50.0, 1.0), values(51.0, 5.0, better), values(50.5, 1.0, noisy, noise=20.0)]
    assert chosen_changes(found) == [better]
    assert recipe(SWEEP, found)["schedule"] == {"every": 4, "finish_rounds": 10}


def test_of_several_the_best_is_taken():
    some = [change("merge", "by samples"), change("merge", "by importance")]
    found = [values(50.0, 1.0), values(51.0, 1.0, some[0]), values(52.0, 1.0, some[1])]
    assert chosen_changes(found) == [some[1]]


def test_a_part_that_saves_takes_the_cheapest_that_is_as_good():
    eighth, sixteenth = change("every", "eighth"), change("every", "sixteenth")
    found = [values(50.0, 1.0), values(50.0, 0.5, eighth), values(48.0, 0.2, sixteenth)]
    assert chosen_changes(found) == [eighth]
    found = [values(50.0, 1.0), values(49.0, 0.5, eighth), values(48.0, 0.2, sixteenth)]
    assert chosen_changes(found) == []


def test_a_dearer_value_is_taken_if_the_first_guess_is_much_worse():
    single = change("every", "single")
    found = [values(50.0, 1.0), values(53.0, 4.0, single)]
    assert chosen_changes(found) == [single]


def test_what_costs_more_than_allowed_is_not_considered():
    second, third = change("every", "second"), change("every", "third")
    found = [values(50.0, 1.0), values(53.0, 2.0, second), values(52.0, 1.4, third)]
    assert chosen_changes(found) == [second]
    assert chosen_changes(found, allowed_mj=1.5) == [third]
    assert chosen_changes(found, allowed_mj=1.2) == []


def test_only_parts_that_a_recipe_has_are_left_out_of_it():
    lean = merge_layers(FIRST_GUESS, {"policy": {"thrift": 0.0}, "schedule": {"finish_rounds": 0}})
    assert [each.part for each in without_each_part(lean)] == ["loss", "every", "codec", "balance"]
    rich = merge_layers(FIRST_GUESS, {"learner": {"cool_down": 0.5}, "common_init": True})
    assert {"cool-down", "start", "finish", "thrift"} <= {each.part for each in without_each_part(rich)}


def test_the_search_has_worlds_of_its_own():
    tables = {settings["seed"] for name in ("table1", "readings", "calibration") for settings in runs(name, FULL)}
    assert {settings["seed"] for settings in runs("plus_search", FULL)}.isdisjoint(tables)
    assert len(points("plus_search", FULL)) == 2 * 2 * (1 + len(CHANGES))
