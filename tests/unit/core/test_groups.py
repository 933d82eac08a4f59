"""Groups of servers that fit together."""

import numpy as np
import pytest
from tests.group_matrices import find_groups

from hatdfed.core.candidates import regular_graph
from hatdfed.core.groups import find_groups as find_groups_by_link
from hatdfed.core.links import LinkTable, all_links
from hatdfed.randomness import stream

N = 6
GROUP = np.arange(N) % 2
TOGETHER = (GROUP[:, None] == GROUP) & all_links(N)
APART = all_links(N) & ~TOGETHER


def test_groups_are_those_who_speak_well_of_each_other():
    verdict = np.where(TOGETHER, 0.5, np.where(APART, -0.5, 0.0))
    assert find_groups(verdict, all_links(N)).tolist() == GROUP.tolist()


def test_a_verdict_of_one_side_is_enough():
    verdict = np.triu(np.where(TOGETHER, 0.5, -0.5), 1)
    assert find_groups(verdict, verdict != 0).tolist() == GROUP.tolist()


def test_where_nobody_can_say_everybody_is_alone():
    assert find_groups(np.zeros((4, 4)), np.zeros((4, 4), dtype=bool)).tolist() == [0, 1, 2, 3]


def test_a_single_bad_word_does_not_split_a_group():
    verdict = 0.5 * all_links(N)
    verdict[0, 1] = -1.0
    assert find_groups(verdict, all_links(N)).tolist() == [0] * N


def test_one_against_whom_all_others_speak_is_alone_whatever_it_says_itself():
    verdict = 0.5 * all_links(N)
    verdict[:, 3] = -1.0
    group = find_groups(verdict * all_links(N), all_links(N))
    assert (group == group[3]).sum() == 1
    assert len(set(group.tolist())) == 2


def test_what_a_server_says_about_others_does_not_split_these():
    """Server 3 lies about everybody."""
    verdict = 0.5 * all_links(N)
    verdict[3] = np.where(np.arange(N) == 3, 0.0, -1.0)
    group = find_groups(verdict, all_links(N))
    assert len({group[i] for i in range(N) if i != 3}) == 1


def test_a_friends_friend_is_a_friend_and_a_friends_enemy_is_none():
    verdict = np.zeros((4, 4))
    verdict[0, 1] = verdict[1, 2] = 0.8
    verdict[1, 3] = -0.8
    group = find_groups(verdict, verdict != 0)
    assert group[0] == group[1] == group[2] != group[3]


def test_groups_are_numbered_in_the_order_of_their_first_members():
    order = np.array([5, 2, 0, 3, 1, 4])
    verdict = np.where(TOGETHER, 0.5, np.where(APART, -0.5, 0.0))[np.ix_(order, order)]
    assert find_groups(verdict, all_links(N)).tolist() == [0, 1, 1, 0, 0, 1]


def test_finding_groups_leaves_the_verdicts_alone():
    verdict, known = 0.5 * all_links(N), all_links(N)
    find_groups(verdict, known)
    np.testing.assert_array_equal(verdict, 0.5 * all_links(N))
    np.testing.assert_array_equal(known, all_links(N))


@pytest.mark.parametrize("servers", [40, 400])
def test_few_verdicts_of_each_server_are_enough_where_servers_consider_few_others(servers):
    links = LinkTable.of_candidates(regular_graph(servers, 8, stream(0, "candidates", servers)))
    group = np.arange(servers) % 3
    verdict = np.where(group[links.receiver] == group[links.sender], 0.5, -0.5)
    verdict += stream(0, "noise", servers).normal(0, 0.25, len(links))
    found = find_groups_by_link(links, verdict, np.ones(len(links), dtype=bool))
    for each in range(3):
        assert np.bincount(found[group == each]).max() > 0.95 * (group == each).sum()
    assert max(len(set(group[found == each])) for each in np.bincount(found).argsort()[-3:]) == 1
