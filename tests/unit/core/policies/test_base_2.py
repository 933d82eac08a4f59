"""The Base-2 graph: exact averaging after a period, for every number of servers."""

from functools import reduce

import numpy as np
import pytest

from hatdfed.core.links import all_links
from hatdfed.core.policies.base_2 import Base2Graph, base_2_schedule
from hatdfed.randomness import stream
from hatdfed.testing import policy_context

PERIODS = {2: 1, 3: 3, 4: 2, 5: 5, 6: 4, 7: 5, 8: 3, 10: 6, 16: 4, 20: 7, 50: 10, 64: 6}


def draw(n, t, **masks):
    return Base2Graph().propose(None, policy_context(n, t=t, **masks), stream(0, "unused"))


def period(n):
    return [draw(n, t).mixing_matrix for t in range(len(base_2_schedule(n)))]


def product(matrices):
    return reduce(lambda done, matrix: matrix @ done, matrices)


def pairs_of(matrix):
    return {(i, j): round(float(matrix[i, j]), 12) for i, j in np.argwhere(np.triu(matrix, 1)).tolist()}


@pytest.mark.parametrize("n", range(2, 65))
def test_a_period_averages_exactly(n):
    matrices = period(n)
    np.testing.assert_allclose(product(matrices), 1 / n, atol=1e-12)
    if n & (n - 1):
        assert not np.allclose(product(matrices[:-1]), 1 / n), "no round is to spare"


@pytest.mark.parametrize("n", range(2, 65))
def test_every_round_is_a_symmetric_matching_that_keeps_the_mean(n):
    for t, matrix in enumerate(period(n)):
        np.testing.assert_array_equal(matrix, matrix.T)
        np.testing.assert_allclose(matrix.sum(axis=1), 1, atol=1e-12)
        assert (matrix >= 0).all()
        links = draw(n, t).topology.links
        assert links.sum(axis=1).max() == 1
        np.testing.assert_array_equal(links, (matrix > 0) & all_links(n))


@pytest.mark.parametrize(("n", "rounds"), PERIODS.items())
def test_periods_are_as_long_as_is_known_and_repeat(n, rounds):
    assert len(base_2_schedule(n)) == rounds
    for t in range(rounds):
        np.testing.assert_array_equal(draw(n, t + 3 * rounds).mixing_matrix, draw(n, t).mixing_matrix)
    assert rounds <= 2 * np.log2(n) + 2


def test_five_servers_meet_as_is_known():
    first, second = {(0, 1): 0.5, (2, 3): 0.5}, {(0, 2): 0.5, (1, 3): 0.5}
    expected = [first, second, {(0, 1): 0.5, (3, 4): 0.8}, first, second]
    assert [pairs_of(matrix) for matrix in period(5)] == expected
    assert draw(5, 2).mixing_matrix[4, 4] == pytest.approx(0.2)
    assert draw(5, 0).mixing_matrix[4, 4] == 1


def test_six_servers_are_two_groups_of_three_and_then_meet_across():
    pair, meeting = {(0, 1): 0.5, (3, 4): 0.5}, {(1, 2): round(2 / 3, 12), (4, 5): round(2 / 3, 12)}
    assert [pairs_of(matrix) for matrix in period(6)] == [pair, meeting, pair, {(0, 3): 0.5, (1, 4): 0.5, (2, 5): 0.5}]


def test_the_weights_of_a_meeting_are_what_makes_it_exact():
    def with_weight(weight):
        matrices = [matrix.copy() for matrix in period(5)]
        matrices[2][3:, 3:] = [[1 - weight, weight], [weight, 1 - weight]]
        return product(matrices)

    np.testing.assert_allclose(with_weight(0.8), 1 / 5, atol=1e-12)
    for near_miss in (0.2, 0.5, 0.75):
        assert not np.allclose(with_weight(near_miss), 1 / 5)


def test_absent_servers_are_skipped_and_the_others_still_average_exactly():
    active = np.ones(8, dtype=bool)
    active[[1, 4, 5]] = False
    done = product([draw(8, t, active=active).mixing_matrix for t in range(5)])
    np.testing.assert_allclose(done[np.ix_(active, active)], 1 / 5, atol=1e-12)
    np.testing.assert_array_equal(done[~active], np.eye(8)[~active])
    lonely = draw(4, 0, active=np.arange(4) == 2)
    assert lonely.topology.num_links == 0
    np.testing.assert_array_equal(lonely.mixing_matrix, np.eye(4))


@pytest.mark.parametrize("dead", [(3, 4), (4, 3)])
def test_a_pair_that_cannot_talk_both_ways_does_not_talk(dead):
    reachable = all_links(5)
    reachable[dead] = False
    cut = draw(5, 2, reachable=reachable)
    assert pairs_of(cut.mixing_matrix) == {(0, 1): 0.5}
    assert cut.topology.num_links == 2
    np.testing.assert_allclose(cut.mixing_matrix.sum(axis=0), 1)
    assert cut.mixing_matrix[3, 3] == cut.mixing_matrix[4, 4] == 1
