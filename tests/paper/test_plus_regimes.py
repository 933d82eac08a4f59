"""Which links are drawn, regime by regime: what is played, what the table holds against what, and the picture."""

import pytest
from tests.paper.made_results import results_of

from hatdfed.setup.layers import resolve
from hatdfed_paper.claims import Claims
from hatdfed_paper.experiments.equal_footing import links_at_mean_price
from hatdfed_paper.experiments.plus_regimes import (
    AS_DEAR,
    AS_MANY,
    EXPERIMENT,
    LEARNED,
    RANDOM,
    REGIMES,
    link_panels,
    points_above_random,
    ways_to_draw,
)
from hatdfed_paper.figures import figure_title
from hatdfed_paper.plan import PLUS, SMOKE, point

CLAIMS = Claims({})
(TABLE,), (FIGURE,) = EXPERIMENT.tables, EXPERIMENT.figures
SERVERS = SMOKE.servers[-1]
# Link megajoules and accuracy, by way: random links reach the recipe's accuracy for twice the joules.
OUTCOMES = {PLUS: (2.0, 60.0), AS_MANY: (4.0, 60.0), AS_DEAR: (1.0, 54.0), LEARNED: (2.0, 61.0)}


def outcome(energy, accuracy):
    others = {"std_accuracy": 1.0, "var_accuracy": 1.0, "best_accuracy": 70.0, "worst_accuracy": 40.0}
    return {**others, "avg_accuracy": accuracy, "link_energy_mj": energy, "total_energy_mj": energy + 1.0}


def played(without=()):
    return results_of(
        [
            (point("digits", PLUS, **changed), outcome(*OUTCOMES[way]))
            for _, way, changed in ways_to_draw("digits", SERVERS)
            if way not in without
        ],
        seeds=(0, 1),
    )


@pytest.mark.parametrize(("dataset", "servers"), [("fashion-mnist", 20), ("cifar-10", 50)])
def test_random_links_cost_no_more_and_one_round_more_often_would(dataset, servers):
    ways = {(regime, way): changed for regime, way, changed in ways_to_draw(dataset, servers)}
    for regime in REGIMES:
        configs = [resolve({"method": PLUS, "dataset": dataset, **ways[regime, way]}) for way in (PLUS, AS_DEAR)]
        rounds = [each.rounds - each.schedule.finish_rounds for each in configs]
        plus, dear = (
            [spoken // (each.schedule.every - less) * links_at_mean_price(each) for less in (0, 1)]
            for each, spoken in zip(configs, rounds, strict=True)
        )
        assert dear[0] <= plus[0] < dear[1]


def test_ways_differ_from_the_recipe_in_how_links_are_drawn_and_in_nothing_else():
    parts = ("loss", "learner", "codec", "aggregator", "energy", "churn", "label_groups", "servers")
    ways = {(regime, way): changed for regime, way, changed in ways_to_draw("digits", 20)}
    for (regime, way), changed in ways.items():
        config, whole = (resolve({"method": PLUS, **each}) for each in (changed, ways[regime, PLUS]))
        assert [getattr(config, part) for part in parts] == [getattr(whole, part) for part in parts]
        assert config.policy.name == whole.policy.name
        assert (config.policy.settings != whole.policy.settings) == (way != PLUS)


def test_the_table_holds_every_way_against_the_recipe_in_the_same_regime():
    rows = TABLE.rows(played(), CLAIMS, SMOKE)
    assert len(rows) == len(REGIMES) * len(OUTCOMES)
    for row in rows:
        ahead = row["plus_is_ahead_by"]
        energy, accuracy = OUTCOMES[row["links"]]
        assert ahead["avg_accuracy_points"]["mean"] == pytest.approx(60.0 - accuracy)
        assert ahead["link_energy_percent"]["mean"] == pytest.approx(100 * (1 - 2.0 / energy))


def test_the_gap_is_measured_at_the_joules_of_the_recipe():
    panels = link_panels(played(), CLAIMS, "digits", SMOKE)
    assert [panel["regime"] for panel in panels] == list(REGIMES)
    assert [line["name"] for line in panels[0]["lines"]] == [RANDOM, PLUS, LEARNED]
    assert points_above_random(panels[0]) == pytest.approx(60.0 - (54.0 + 6.0 / 3.0))
    data = {"kind": "links", "dataset": "digits", "scale": "smoke", "panels": panels}
    assert figure_title(data) == "Digits: hat-dfed-plus-0.1 ends 4.0 points above the line of random links"
    assert len(FIGURE.draw(data, figure_title(data)).axes) == len(REGIMES)


def test_without_the_recipe_there_is_nothing_to_draw_and_with_it_alone_no_gap():
    assert not any(panel["lines"] for panel in link_panels(played(without=[PLUS]), CLAIMS, "digits", SMOKE))
    (alone, *_) = link_panels(played(without=[AS_MANY, AS_DEAR, LEARNED]), CLAIMS, "digits", SMOKE)
    assert points_above_random(alone) is None
    assert TABLE.rows(played(without=[PLUS]), CLAIMS, SMOKE) == []
