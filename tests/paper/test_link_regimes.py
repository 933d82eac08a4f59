"""Which links are drawn, regime by regime: what is played, what the table holds against what, and the picture."""

import pytest

from hatdfed.setup.layers import resolve
from hatdfed_paper import figure_words as words
from hatdfed_paper.equal_footing import links_at_mean_price
from hatdfed_paper.link_figure import links
from hatdfed_paper.link_regimes import AS_DEAR, AS_MANY, LEARNED, REGIMES, ways_to_draw
from hatdfed_paper.plans import SMOKE, point
from hatdfed_paper.plus_figure_data import RANDOM, link_panels
from hatdfed_paper.plus_plans import PLUS
from hatdfed_paper.plus_tables import plus_tables
from hatdfed_paper.results import ResultFile, Results, keep

SERVERS = SMOKE.servers[-1]
# Link megajoules and accuracy, by way: random links reach the recipe's accuracy for twice the joules.
OUTCOMES = {PLUS: (2.0, 60.0), AS_MANY: (4.0, 60.0), AS_DEAR: (1.0, 54.0), LEARNED: (2.0, 61.0)}


def outcome(energy, accuracy):
    others = {"std_accuracy": 1.0, "var_accuracy": 1.0, "best_accuracy": 70.0, "worst_accuracy": 40.0}
    return {**others, "avg_accuracy": accuracy, "link_energy_mj": energy, "total_energy_mj": energy + 1.0}


def played(without=()):
    files = {"by hand": ResultFile(None, "smoke")}
    for _, way, changed in ways_to_draw("digits", SERVERS):
        for seed in (0, 1):
            if way not in without:
                settings = {**point("digits", PLUS, **changed), "seed": seed}
                keep(files, "by hand", {"key": "", "settings": settings, "figures": outcome(*OUTCOMES[way])})
    return Results(files)


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
    rows = plus_tables(played(), SMOKE)["plus_regimes"]
    assert len(rows) == len(REGIMES) * len(OUTCOMES)
    for row in rows:
        ahead = row["plus_is_ahead_by"]
        energy, accuracy = OUTCOMES[row["links"]]
        assert ahead["avg_accuracy_points"]["mean"] == pytest.approx(60.0 - accuracy)
        assert ahead["link_energy_percent"]["mean"] == pytest.approx(100 * (1 - 2.0 / energy))


def test_the_gap_is_measured_at_the_joules_of_the_recipe():
    panels = link_panels(played(), "digits", SMOKE)
    assert [panel["regime"] for panel in panels] == list(REGIMES)
    assert [line["name"] for line in panels[0]["lines"]] == [RANDOM, PLUS, LEARNED]
    assert words.above_random(panels[0]) == pytest.approx(60.0 - (54.0 + 6.0 / 3.0))
    data = {"kind": "links", "dataset": "digits", "scale": "smoke", "panels": panels}
    assert words.title(data) == "Digits: hat-dfed-plus-0.1 ends 4.0 points above the line of random links"
    assert len(links(data).axes) == len(REGIMES)


def test_without_the_recipe_there_is_nothing_to_draw_and_with_it_alone_no_gap():
    assert not any(panel["lines"] for panel in link_panels(played(without=[PLUS]), "digits", SMOKE))
    (alone, *_) = link_panels(played(without=[AS_MANY, AS_DEAR, LEARNED]), "digits", SMOKE)
    assert words.above_random(alone) is None
    assert plus_tables(played(without=[PLUS]), SMOKE)["plus_regimes"] == []
