"""Asynchronous pairwise averaging."""

import numpy as np

from hatdfed.core.links import LinkTable
from hatdfed.core.policies.base import Feedback, PolicyContext
from hatdfed.core.policies.pairwise import PairwiseAveraging
from hatdfed.core.round import RoundReport
from hatdfed.randomness import stream

LINKS = LinkTable.all_of(5)
POLICY = PairwiseAveraging()
NOTHING = Feedback(RoundReport((None,) * 5), np.zeros(20))


def context(due, t=0):
    return PolicyContext(
        t, 10, 6, LINKS, np.ones(20), np.ones(5, dtype=bool), LINKS.at_receivers(np.isin(range(5), due))
    )


def play(state, due, t=0):
    draw = POLICY.propose(state, context(due, t), stream(3, "topology", t))
    return draw, POLICY.update(state, draw, NOTHING, context(due, t))


def test_when_all_have_trained_both_ends_of_a_pair_average():
    draw, state = play(POLICY.init(5), range(5))
    links = LINKS.to_dense(draw.drawn)
    np.testing.assert_array_equal(links, links.T)
    assert (links.sum(axis=1) >= 1).all()
    assert not state.owed.any()
    np.testing.assert_allclose(draw.mixing_matrix.sum(axis=1), 1)
    own = np.diag(draw.mixing_matrix)
    np.testing.assert_allclose(own, 1 / (1 + links.sum(axis=1)))


def test_a_server_that_was_picked_while_it_trained_averages_when_it_is_done():
    draw, state = play(POLICY.init(5), [0])
    ((receiver, partner),) = draw.topology.pairs.tolist()
    assert receiver == 0
    assert LINKS.pairs(np.flatnonzero(state.owed)).tolist() == [[partner, 0]]
    others = [i for i in range(5) if i not in (0, partner)]
    _, still = play(state, others, 1)
    assert still.owed[LINKS.places(np.array([partner]), np.array([0]))].all()
    later, after = play(state, [partner], 2)
    assert [partner, 0] in later.topology.pairs.tolist()
    assert not after.owed[LINKS.places(np.array([partner]), np.array([0]))].any()


def test_what_is_owed_is_paid_once_and_owes_nothing_back():
    owed = (LINKS.receiver == 1) & (LINKS.sender == 0)
    for t in range(20):
        draw, after = play(POLICY.init(5)._replace(owed=owed), [1], t)
        paid, *more = sorted(draw.topology.pairs.tolist(), key=lambda pair: pair != [1, 0])
        assert paid == [1, 0]
        assert LINKS.pairs(np.flatnonzero(after.owed)).tolist() == [[sender, 1] for _, sender in more]
