"""Groups keep their numbers from round to round."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hatdfed.core.beliefs import NO_GROUP, number_groups

SOME_GROUPS = st.lists(st.integers(NO_GROUP, 4), min_size=6, max_size=6).map(np.array)


def test_new_groups_are_numbered_in_their_order():
    nobody = np.full(4, NO_GROUP)
    assert number_groups(nobody, np.array([0, 1, 0, 1])).tolist() == [0, 1, 0, 1]
    assert number_groups(nobody, nobody).tolist() == [NO_GROUP] * 4


def test_a_server_that_moves_takes_the_number_of_its_new_group():
    assert number_groups(np.array([0, 0, 0, 1, 1]), np.array([0, 1, 1, 0, 0])).tolist() == [1, 0, 0, 1, 1]


def test_the_larger_part_of_a_divided_group_keeps_the_number():
    assert number_groups(np.array([3, 3, 3, 3, 3]), np.array([0, 0, 1, 1, 1])).tolist() == [0, 0, 3, 3, 3]


def test_joined_groups_keep_the_number_of_the_larger_one():
    assert number_groups(np.array([0, 1, 1]), np.array([0, 0, 0])).tolist() == [1, 1, 1]


def test_servers_that_joined_since_are_in_no_group_before():
    assert number_groups(np.array([0, 1]), np.array([0, 1, 1, 2])).tolist() == [0, 1, 1, 2]


@given(SOME_GROUPS, SOME_GROUPS)
def test_servers_are_together_as_before_the_numbering(before, now):
    numbered = number_groups(before, now)
    np.testing.assert_array_equal(numbered[:, None] == numbered, now[:, None] == now)
    np.testing.assert_array_equal(numbered == NO_GROUP, now == NO_GROUP)


@given(SOME_GROUPS)
def test_groups_that_stay_as_they_are_keep_all_numbers(groups):
    shuffled = np.where(groups == NO_GROUP, NO_GROUP, 4 - groups)
    np.testing.assert_array_equal(number_groups(groups, shuffled), groups)
