"""The distance of models to their mean, estimated from sketches of any linear kind."""

import numpy as np
import pytest

from hatdfed.core.consensus import estimate_consensus_distance


def sketches(*rows):
    return [None if row is None else np.array(row, dtype=np.float32) for row in rows]


def test_the_distance_is_relative_to_the_mean_model():
    # The mean is (3, 4) of length 5; the models are 1 and 1 away from it.
    assert estimate_consensus_distance(sketches([4, 4], [2, 4])) == pytest.approx(1 / 5)


def test_servers_count_alike_however_far_away_they_are():
    # Around the mean (10, 0): distances 3, 3 and 0.
    assert estimate_consensus_distance(sketches([10, 3], [10, -3], [10, 0])) == pytest.approx(2 / 10)


def test_a_server_alone_and_servers_that_agree_are_at_distance_0():
    assert estimate_consensus_distance(sketches([1, 2])) == 0
    assert estimate_consensus_distance(sketches([1, 2], [1, 2])) == 0


@pytest.mark.parametrize("rows", [(), (None,), ([1, 2], None), ([1, -1], [-1, 1]), ([0, 0],), ([np.nan, 1], [1, 1])])
def test_it_is_unknown_without_all_sketches_and_around_a_mean_of_0(rows):
    assert estimate_consensus_distance(sketches(*rows)) is None
