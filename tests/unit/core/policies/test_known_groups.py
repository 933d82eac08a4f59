"""The upper bound that is told who belongs together."""

import numpy as np
import pytest

from hatdfed.core.links import all_links
from hatdfed.core.policies.base import NoState
from hatdfed.core.policies.known_groups import KnownGroups
from hatdfed.data.datasets import load_dataset
from hatdfed.randomness import stream
from hatdfed.setup.build.program import make_actors
from hatdfed.setup.layers import config_members, resolve
from hatdfed.testing import TopologyPolicyLaws, policy_context

N, K = 7, 20
BEFORE, AFTER = (0, 1, 0, 1, 0, 1, 9), (0, 1, 0, 1, 1, 0, 9)  # the last is alone


class TestLawsWithoutGroups(TopologyPolicyLaws):
    sizes = (2, 3, 5, 8, 18)

    def policy(self):
        return KnownGroups()


def groups(**more):
    return KnownGroups(group=BEFORE, last_group=AFTER, change_at=0.5, **more)


def inside(group):
    return (np.array(group)[:, None] == group) & all_links(N)


def drawn(policy, t, seed=0, **more):
    return policy.propose(NoState(), policy_context(N, t=t, horizon=K, **more), stream(seed, "topology", t))


@pytest.mark.parametrize("t", range(0, K, 3))
def test_links_are_inside_the_groups_of_the_time(t):
    links = drawn(groups(), t).topology.links
    assert links.any()
    assert not (links & ~inside(BEFORE if t < 10 else AFTER)).any()


@pytest.mark.parametrize(("t", "group"), [(9, BEFORE), (10, AFTER)])
def test_the_finish_is_all_links_inside_the_groups_of_the_time(t, group):
    context = policy_context(N, t=t, horizon=K)
    np.testing.assert_array_equal(context.links.to_dense(groups().finish(NoState(), context)), inside(group))


def test_who_is_alone_neither_hears_nor_is_heard():
    for seed in range(10):
        links = drawn(groups(), 0, seed).topology.links
        assert not links[6].any()
        assert not links[:, 6].any()


def test_where_everybody_is_alone_there_is_silence():
    alone = KnownGroups(group=tuple(range(N)), last_group=tuple(range(N)))
    draw = drawn(alone, 0)
    assert draw.topology.num_links == 0
    assert draw.mixing is None


def test_cheap_links_are_preferred_inside_groups():
    prices = np.full((N, N), 2.0)
    prices[0, 2] = prices[2, 4] = prices[4, 0] = 1.0
    shares = np.mean([drawn(groups(), 0, seed, prices=prices).topology.links for seed in range(12)], axis=0)
    assert shares[0, 2] > 0.8 > 0.2 > shares[0, 4]


def test_those_who_are_away_are_left_out():
    active = np.arange(N) != 2
    links = drawn(groups(), 0, active=active).topology.links
    assert not links[2].any()
    assert not links[:, 2].any()


def test_a_run_tells_it_the_groups_of_its_world_and_that_those_who_are_not_sound_are_alone():
    world = {"groups": 2, "differ": "labels", "changing": 0.25, "change_at": 0.25, "liars": 0.25, "bad_labels": 0.125}
    config = resolve(
        {"method": "oracle-groups", "dataset": "digits", "network": "linear", "servers": 8, "world": world}
    )
    policy = make_actors(config, load_dataset("digits"))[0].policy.policy
    members = config_members(config)
    sound = np.flatnonzero(members.is_sound)
    assert len(sound) == 5
    np.testing.assert_array_equal(np.array(policy.group)[sound], members.group[sound])
    np.testing.assert_array_equal(np.array(policy.last_group)[sound], members.last_group[sound])
    others = [policy.group[i] for i in np.flatnonzero(~members.is_sound)]
    assert len(set(others)) == 3
    assert not set(others) & {0, 1}
    assert policy.change_at == 0.25
