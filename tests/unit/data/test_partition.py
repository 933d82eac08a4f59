import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hatdfed.data.partition import draw_label_skewed_shards, draw_validation_sample, split_by_group
from hatdfed.errors import ConfigError

LABELS = np.repeat(np.arange(10), 200)


def shards(seed=0, **changes):
    settings = {"num_servers": 5, "images_per_server": 100, "label_concentration": 0.3, **changes}
    return draw_label_skewed_shards(LABELS, seed=seed, **settings)


@given(st.integers(0, 1000), st.floats(0.01, 10), st.integers(1, 300))
def test_every_server_owns_as_many_different_images_as_asked(seed, concentration, size):
    for shard in shards(seed, label_concentration=concentration, images_per_server=size):
        assert len(set(shard.tolist())) == size


def test_a_seed_is_a_world():
    assert all(np.array_equal(a, b) for a, b in zip(shards(1), shards(1), strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(shards(1), shards(2), strict=True))


def test_adding_a_server_moves_nobody_elses_images():
    for few, many in zip(shards(num_servers=3), shards(num_servers=8), strict=False):
        np.testing.assert_array_equal(few, many)


def test_small_concentration_means_few_labels():
    def labels_held(concentration):
        held = [
            len(set(LABELS[shard])) for seed in range(20) for shard in shards(seed, label_concentration=concentration)
        ]
        return np.mean(held)

    assert labels_held(0.05) < 3 < 8 < labels_held(10)


def test_label_shares_have_the_dirichlets_spread():
    # Var of a share under Dir(λ) with k labels: (1/k)(1 − 1/k) / (kλ + 1); the multinomial adds a little.
    share = [
        np.bincount(LABELS[s], minlength=10)[0] / 100
        for seed in range(200)
        for s in shards(seed, label_concentration=0.7)
    ]
    expected = 0.1 * 0.9 / 8 + 0.1 * 0.9 / 100
    assert np.var(share) == pytest.approx(expected, rel=0.2)


def test_disjoint_servers_share_nothing():
    owned = np.concatenate(shards(disjoint=True, num_servers=20))
    assert len(set(owned.tolist())) == len(owned) == 2000


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"images_per_server": 2001}, "images_per_server is 2001"),
        ({"num_servers": 2001}, "servers is 2001"),
        ({"num_servers": 21, "disjoint": True}, "at most 20 servers"),
    ],
)
def test_more_than_the_images_allow_is_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        shards(**changes)


def test_the_validation_sample_is_one_for_a_seed():
    np.testing.assert_array_equal(
        draw_validation_sample(1000, seed=3, size=50), draw_validation_sample(1000, seed=3, size=50)
    )
    assert len(set(draw_validation_sample(1000, seed=3, size=1000).tolist())) == 1000
    with pytest.raises(ConfigError, match="at most 1000"):
        draw_validation_sample(1000, seed=3, size=1001)


def test_a_natural_split_keeps_every_person_together():
    people = np.repeat(np.arange(7), 30)
    owned = split_by_group(people, seed=0, num_servers=3, images_per_server=50)
    held = [set(people[shard].tolist()) for shard in owned]
    assert [len(shard) for shard in owned] == [50, 50, 50]
    assert not held[0] & held[1]
    assert not held[1] & held[2]
    with pytest.raises(ConfigError, match="7 people or places"):
        split_by_group(people, seed=0, num_servers=8, images_per_server=5)


@pytest.mark.parametrize("groups", [2, 3])
def test_groups_of_servers_share_no_label(groups):
    for server, shard in enumerate(shards(num_servers=7, label_groups=groups)):
        assert len(shard) == 100
        assert {int(label) % groups for label in LABELS[shard]} == {server % groups}


def test_one_group_is_the_split_of_before():
    assert all(np.array_equal(a, b) for a, b in zip(shards(4), shards(4, label_groups=1), strict=True))


def test_a_group_without_enough_images_is_refused():
    with pytest.raises(ConfigError, match="label_groups 10"):
        shards(num_servers=10, label_groups=10, images_per_server=201)
    with pytest.raises(ConfigError, match="label_groups is 12, but 12 servers and 10 labels make at most 10 groups"):
        shards(num_servers=12, label_groups=12)
    with pytest.raises(ConfigError, match="label_groups is 4, but 3 servers"):
        shards(num_servers=3, label_groups=4)
