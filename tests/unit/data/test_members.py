"""Who is who in a simulated world: a function of the seed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hatdfed.data.members import draw_amounts, draw_members
from hatdfed.errors import ConfigError

FAULTY = {"liars": 0.2, "bad_labels": 0.3, "broken_sensors": 0.1}


def group_sizes(num_servers, groups, shares=None):
    return np.bincount(draw_members(0, num_servers, groups=groups, group_shares=shares).group, minlength=groups)


@pytest.mark.parametrize(
    ("num_servers", "shares", "sizes"),
    [
        (10, None, [4, 3, 3]),
        (10, (0.5, 0.3, 0.2), [5, 3, 2]),
        (10, (5, 3, 2), [5, 3, 2]),  # relative sizes need not sum to 1
        (10, (0.47, 0.27, 0.26), [5, 3, 2]),  # wanted 4.7, 2.7, 2.6: the largest remainders are rounded up
        (7, (0.6, 0.2, 0.2), [4, 2, 1]),  # wanted 4.2, 1.4, 1.4: of equal remainders the first
        (6, (0.98, 0.01, 0.01), [4, 1, 1]),  # nobody's group is empty
    ],
)
def test_group_sizes_follow_the_shares_by_largest_remainders(num_servers, shares, sizes):
    assert group_sizes(num_servers, 3, shares).tolist() == sizes


@given(st.lists(st.floats(0.001, 1), min_size=1, max_size=8), st.integers(0, 40))
def test_every_server_has_a_group_and_every_group_a_server(shares, more):
    num_servers = len(shares) + more
    sizes = group_sizes(num_servers, len(shares), shares)
    assert sizes.sum() == num_servers
    assert sizes.min() >= 1


def test_the_same_seed_is_the_same_world_and_another_is_another():
    def drawn(seed):
        return draw_members(seed, 40, groups=3, changing=0.5, **FAULTY)

    assert all(np.array_equal(a, b) for a, b in zip(drawn(7), drawn(7), strict=True))
    assert not any(np.array_equal(a, b) for a, b in zip(drawn(7), drawn(8), strict=True))


def test_who_lies_does_not_depend_on_groups_and_the_other_way_round():
    plain, grouped = draw_members(3, 30, **FAULTY), draw_members(3, 30, groups=4, changing=0.5, **FAULTY)
    for name in ("is_liar", "has_bad_labels", "has_broken_sensors"):
        np.testing.assert_array_equal(getattr(plain, name), getattr(grouped, name))
    np.testing.assert_array_equal(draw_members(3, 30, groups=4).group, grouped.group)


@given(st.integers(0, 1000), st.integers(2, 30))
def test_nobody_has_two_faults(seed, num_servers):
    members = draw_members(seed, num_servers, **FAULTY)
    flags = np.stack([members.is_liar, members.has_bad_labels, members.has_broken_sensors])
    assert flags.sum(axis=0).max() <= 1
    assert flags.sum(axis=1).tolist() == [round(share * num_servers) for share in FAULTY.values()]
    np.testing.assert_array_equal(members.is_sound, ~flags.any(axis=0))


def test_in_a_plain_world_everybody_is_sound_and_of_one_group():
    members = draw_members(0, 12)
    assert members.is_sound.all()
    assert not members.group.any()
    assert not members.last_group.any()


@pytest.mark.parametrize("groups", [2, 3])
def test_those_who_change_go_to_another_group_and_nobody_else_does(groups):
    members = draw_members(1, 20, groups=groups, changing=0.25)
    moved = members.last_group != members.group
    assert moved.sum() == 5
    assert set(members.last_group.tolist()) <= set(range(groups))


def test_without_change_the_last_group_is_the_first():
    members = draw_members(1, 20, groups=3)
    np.testing.assert_array_equal(members.group, members.last_group)


@pytest.mark.parametrize("ratio", [1.0, 4.0, 100.0])
def test_amounts_lie_within_the_ratio_around_the_mean(ratio):
    amounts = np.array(draw_amounts(0, 300, 1000, ratio))
    assert amounts.min() >= round(1000 / ratio**0.5)
    assert amounts.max() <= round(1000 * ratio**0.5)
    if ratio == 1:
        assert (amounts == 1000).all()
    else:
        assert amounts.max() / amounts.min() > 0.9 * ratio
        assert np.log(amounts).mean() == pytest.approx(np.log(1000), abs=0.1 * np.log(ratio))


def test_nobody_has_nothing():
    assert min(draw_amounts(0, 100, 2, 100.0)) == 1


def test_adding_a_server_changes_nobody_elses_amount():
    assert draw_amounts(5, 20, 100, 4.0)[:8] == draw_amounts(5, 8, 100, 4.0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"groups": 6}, r"world\.groups is 6, but there are 5 servers"),
        ({"groups": 2, "group_shares": (1, 1, 1)}, r"world\.group_shares has 3 numbers, but world\.groups is 2"),
        ({"liars": 0.6, "bad_labels": 0.4}, r"world\.liars.* name 5 of 5 servers\. Leave at least one"),
        ({"broken_sensors": 1.0}, r"world\.broken_sensors name 5 of 5 servers"),
    ],
)
def test_worlds_that_cannot_be_are_refused_in_a_sentence(settings, message):
    with pytest.raises(ConfigError, match=message):
        draw_members(0, 5, **settings)
