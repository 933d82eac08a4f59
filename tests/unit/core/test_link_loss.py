"""Links that lose messages."""

import numpy as np
import pytest

from hatdfed.core.link_loss import LinkLoss
from hatdfed.core.links import LinkTable

PAIRS = LinkTable.all_of(5).pairs(np.arange(20))


def test_every_link_has_a_rate_of_its_own_inside_the_range():
    rates = [LinkLoss(0, 0.1, 0.4).rate(*pair) for pair in PAIRS.tolist()]
    assert 0.1 <= min(rates) < 0.2
    assert 0.3 < max(rates) <= 0.4
    assert len(set(rates)) == len(rates)


def test_the_two_directions_of_a_link_differ():
    loss = LinkLoss(0, 0.1, 0.4)
    assert loss.rate(1, 2) != loss.rate(2, 1)


def test_what_is_lost_depends_on_seed_round_and_link_alone():
    loss = LinkLoss(3, 0.2, 0.8)
    whole = loss.find_lost(7, PAIRS)
    np.testing.assert_array_equal(whole, LinkLoss(3, 0.2, 0.8).find_lost(7, PAIRS))
    order = np.arange(20)[::-3]
    np.testing.assert_array_equal(loss.find_lost(7, PAIRS[order]), whole[order])
    assert not np.array_equal(whole, loss.find_lost(8, PAIRS))
    assert not np.array_equal(whole, LinkLoss(4, 0.2, 0.8).find_lost(7, PAIRS))


def test_over_many_rounds_each_link_loses_about_its_rate():
    loss, rounds, few = LinkLoss(1, 0.05, 0.6), 1500, PAIRS[::5]
    lost = np.mean([loss.find_lost(t, few) for t in range(rounds)], axis=0)
    np.testing.assert_allclose(lost, [loss.rate(*pair) for pair in few.tolist()], atol=4 * 0.5 / np.sqrt(rounds))


@pytest.mark.parametrize(("rate", "expected"), [(0.0, False), (1.0, True)])
def test_a_rate_of_0_loses_nothing_and_one_of_1_everything(rate, expected):
    loss = LinkLoss(0, rate, rate)
    assert all((loss.find_lost(t, PAIRS) == expected).all() for t in range(10))


def test_in_a_round_without_links_nothing_is_lost():
    lost = LinkLoss(0, 0.5, 0.5).find_lost(0, PAIRS[:0])
    assert lost.shape == (0,)
    assert lost.dtype == bool
