"""What it means that every method stands on one footing with hat-dfed-plus."""

import pytest

from hatdfed.setup.layers import resolve
from hatdfed_paper.experiments.equal_footing import equal_footing, fitting_interval, links_at_mean_price
from hatdfed_paper.plan import BASELINES


@pytest.mark.parametrize("servers", [5, 20])
@pytest.mark.parametrize("method", [*BASELINES, "hat-dfed"])
def test_the_interval_is_the_smallest_that_costs_no_more(method, servers):
    own, plus = (
        resolve({"method": name, "dataset": "cifar-10", "servers": servers}) for name in (method, "hat-dfed-plus-0.1")
    )
    rounds = plus.rounds - plus.schedule.finish_rounds
    allowed = rounds // plus.schedule.every * links_at_mean_price(plus)
    m = fitting_interval(own, plus)
    assert rounds // m * links_at_mean_price(own) <= allowed < rounds // (m - 1) * links_at_mean_price(own)


def test_a_preference_for_cheap_links_is_counted():
    plus = resolve({"method": "hat-dfed-plus-0.1", "dataset": "cifar-10"})
    assert 4.0 < links_at_mean_price(plus) < 5.0
    assert links_at_mean_price(resolve({"method": "d-psgd", "dataset": "cifar-10"})) == 10.0


def test_equal_footing_gives_the_parts_and_nothing_else():
    given = equal_footing("d-psgd", "cifar-10", 5)
    config = resolve({"method": "d-psgd", "dataset": "cifar-10", **given})
    plus = resolve({"method": "hat-dfed-plus-0.1", "dataset": "cifar-10"})
    assert (config.loss, config.codec) == (plus.loss, plus.codec)
    assert config.schedule.finish_rounds == plus.schedule.finish_rounds
    assert config.policy.name == "ring"
