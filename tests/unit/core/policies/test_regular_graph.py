"""A regular graph that stays the same for the whole run."""

import numpy as np
import pytest

from hatdfed.core.policies.regular_graph import RegularGraph
from hatdfed.core.policies.scheduled import Scheduled
from hatdfed.errors import ConfigError
from hatdfed.randomness import stream
from hatdfed.testing import TopologyPolicyLaws, policy_context


class TestWithThreeNeighbours(TopologyPolicyLaws):
    impossible_sizes = (2, 3, 5, 7)

    def policy(self):
        return RegularGraph(degree=3)


def links_of(policy, n, round_seed=0, **context):
    return policy.propose(None, policy_context(n, **context), stream(round_seed, "round")).topology.links


@pytest.mark.parametrize(("n", "degree"), [(256, 6), (256, 10), (64, 8), (5, 4)])
def test_everybody_has_as_many_neighbours(n, degree):
    links = links_of(RegularGraph(degree), n)
    assert (links.sum(axis=0) == degree).all()
    assert (links == links.T).all()


def test_the_graph_is_the_same_in_every_round_and_run_but_not_for_another_graph_seed():
    first = links_of(RegularGraph(4), 32)
    assert (links_of(RegularGraph(4), 32, round_seed=9, t=17) == first).all()
    assert (links_of(RegularGraph(4, graph_seed=1), 32) != first).any()


def test_models_of_all_neighbours_and_the_own_one_weigh_the_same():
    context = policy_context(16)
    draw = RegularGraph(3).propose(None, context, stream(0, "round"))
    np.testing.assert_allclose(draw.mixing[draw.drawn], 1 / 4)
    assert not draw.mixing[~draw.drawn].any()


def test_absent_servers_have_no_links_and_the_others_keep_theirs():
    is_there = np.arange(16) != 5
    whole, rest = links_of(RegularGraph(3), 16), links_of(RegularGraph(3), 16, active=is_there)
    assert not rest[5].any()
    assert not rest[:, 5].any()
    assert (rest[np.ix_(is_there, is_there)] == whole[np.ix_(is_there, is_there)]).all()


def test_a_finish_uses_no_link_outside_the_graph():
    policy, context = Scheduled(RegularGraph(3), finish_rounds=2), policy_context(16, t=9, horizon=10)
    draw = policy.propose(policy.init(16), context, stream(0, "round"))
    assert (draw.topology.links == links_of(RegularGraph(3), 16)).all()


@pytest.mark.parametrize(("n", "degree"), [(5, 3), (4, 4)])
def test_degrees_that_no_graph_has_are_refused(n, degree):
    with pytest.raises(ConfigError, match=rf"policy.degree is {degree}, but no graph of {n} servers"):
        links_of(RegularGraph(degree), n)


def test_settings_below_their_limits_are_refused():
    with pytest.raises(ConfigError, match=r"policy.degree is 0, but must be at least 1"):
        RegularGraph(0)
    with pytest.raises(ConfigError, match=r"policy.graph_seed is -1, but must be at least 0"):
        RegularGraph(2, graph_seed=-1)
