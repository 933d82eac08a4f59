import numpy as np
import pytest
from tests.connected import is_strongly_connected

from hatdfed.core.links import all_links
from hatdfed.core.policies import POLICIES
from hatdfed.core.policies.ring import metropolis_weights
from hatdfed.randomness import stream
from hatdfed.testing import policy_context


def test_random_links_are_uniform_over_links():
    policy, counts, repeats = POLICIES["random-links"](), np.zeros((4, 4)), 6_000
    context, rng = policy_context(4, budget=5), stream(0, "uniform")
    for _ in range(repeats):
        counts += policy.propose(None, context, rng).topology.links
    p = 5 / 12
    assert (np.abs(counts / repeats - p)[all_links(4)] < 4 * np.sqrt(p * (1 - p) / repeats)).all()


def test_the_ring_gives_a_third_each_and_two_servers_average():
    draw = POLICIES["ring"]().propose(None, policy_context(5), stream(0, "ring"))
    assert draw.topology.num_links == 10
    assert is_strongly_connected(draw.topology)
    np.testing.assert_allclose(draw.mixing_matrix[0], [1 / 3, 1 / 3, 0, 0, 1 / 3])
    pair = POLICIES["ring"]().propose(None, policy_context(2), stream(0, "ring"))
    np.testing.assert_allclose(pair.mixing_matrix, [[0.5, 0.5], [0.5, 0.5]])


@pytest.mark.parametrize("n", range(2, 20))
def test_ring_weights_are_symmetric_doubly_stochastic_and_contract(n):
    weights = POLICIES["ring"]().propose(None, policy_context(n), stream(0, "ring")).mixing_matrix
    np.testing.assert_allclose(weights, weights.T)
    np.testing.assert_allclose(weights.sum(axis=1), 1)
    if n > 2:
        second = sorted(np.abs(np.linalg.eigvalsh(weights)))[-2]
        expected = max(abs(1 / 3 + 2 / 3 * np.cos(2 * np.pi * k / n)) for k in range(1, n))
        assert second == pytest.approx(expected)


def test_train_then_average_on_the_ring_gives_the_known_vector():
    x, g = np.arange(5.0), np.arange(5.0)
    weights = POLICIES["ring"]().propose(None, policy_context(5), stream(0, "ring")).mixing_matrix
    np.testing.assert_allclose(weights @ (x - 0.1 * g), [1.5, 0.9, 1.8, 2.7, 2.1])


def test_metropolis_weights_of_a_path():
    path = np.zeros((4, 4), dtype=bool)
    for i in range(3):
        path[i, i + 1] = path[i + 1, i] = True
    expected = np.array([[2, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 1], [0, 0, 1, 2]]) / 3
    np.testing.assert_allclose(metropolis_weights(path), expected)
