"""hat-dfed-plus without each of its parts."""

from hatdfed.setup.layers import merge_layers, resolve
from hatdfed_paper.experiments.plus_ablation import EXPERIMENT, without_each_part
from hatdfed_paper.experiments.plus_search import FIRST_GUESS
from hatdfed_paper.plan import SMOKE


def test_only_parts_that_a_recipe_has_are_left_out_of_it():
    lean = merge_layers(FIRST_GUESS, {"policy": {"thrift": 0.0}, "schedule": {"finish_rounds": 0}})
    assert [each.part for each in without_each_part(lean)] == ["loss", "every", "codec", "balance"]
    rich = merge_layers(FIRST_GUESS, {"learner": {"cool_down": 0.5}, "common_init": True})
    assert {"cool-down", "start", "finish", "thrift"} <= {each.part for each in without_each_part(rich)}


def test_the_ablation_takes_one_part_away_at_a_time():
    plus = resolve({"method": "hat-dfed-plus-0.1"})
    for settings in EXPERIMENT.all_points(SMOKE)[1:]:
        config = resolve({**settings, "label_concentration": 0.3})
        parts = ("loss", "learner", "codec", "schedule", "policy", "aggregator")
        assert sum(getattr(config, part) != getattr(plus, part) for part in parts) == 1
