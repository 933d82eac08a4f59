"""The exponential graph against the offsets, weights and norms known for it, and against its near misses."""

import numpy as np
import pytest

from hatdfed.core.links import all_links
from hatdfed.core.policies.exponential import ExponentialGraph, exponential_offsets
from hatdfed.errors import ConfigError
from hatdfed.randomness import stream
from hatdfed.testing import TopologyPolicyLaws, policy_context

OFFSETS = {
    (1, 5): [[1], [2], [4]],
    (1, 6): [[1], [2], [4]],
    (1, 8): [[1], [2], [4]],
    (1, 10): [[1], [2], [4], [8]],
    (1, 20): [[1], [2], [4], [8], [16]],
    (1, 50): [[1], [2], [4], [8], [16], [32]],
    (2, 5): [[1, 2], [1, 3]],
    (2, 6): [[1, 2], [3]],
    (2, 8): [[1, 2], [3, 6]],
    (2, 10): [[1, 2], [3, 6], [8, 9]],
    (2, 18): [[1, 2], [3, 6], [9]],
    (2, 20): [[1, 2], [3, 6], [9, 18]],
    (2, 50): [[1, 2], [3, 6], [9, 18], [4, 27]],
    (2, 54): [[1, 2], [3, 6], [9, 18], [27]],
}

# ‖W_L ⋯ W_1 − J‖₂ over one period, uniform weights.
NORMS = {
    1: {4: 0, 8: 0, 16: 0, 32: 0, 5: 0.2023, 6: 0.2165, 7: 0.1250, 10: 0.1924, 20: 0.1900, 50: 0.1917},
    2: {3: 0, 9: 0, 27: 0, 6: 0, 5: 0.1111, 10: 0.0970, 20: 0.2110, 50: 0.1828},
}


class TestOnePeer(TopologyPolicyLaws):
    def policy(self):
        return ExponentialGraph(peers=1)


def links_of(n, peers, t, **masks):
    context = policy_context(n, t=t, **masks)
    return ExponentialGraph(peers).propose(None, context, stream(0, "unused")).topology.links


def offsets_of(links):
    """How far ahead each sender's receivers lie; the same for all or this fails."""
    n = len(links)
    ahead = [sorted((np.flatnonzero(links[:, sender]) - sender) % n) for sender in range(n)]
    assert all(each == ahead[0] for each in ahead)
    return ahead[0]


def averaging(links):
    held = links + np.eye(len(links))
    return held / held.sum(axis=1, keepdims=True)


def period_norm(n, rounds):
    product = np.eye(n)
    for links in rounds:
        product = averaging(links) @ product
    return np.linalg.norm(product - 1 / n, 2)


@pytest.mark.parametrize(("peers", "n"), OFFSETS)
def test_every_level_sends_as_far_ahead_as_the_table_says(peers, n):
    expected = OFFSETS[peers, n]
    drawn = [links_of(n, peers, t) for t in range(2 * len(expected))]
    assert [offsets_of(links) for links in drawn] == 2 * expected
    assert [offsets_of(links.T) for links in drawn] != 2 * expected, "the direction matters"


def test_levels_are_counted_in_whole_numbers():
    # The trap: log(243) / log(3) is 4.999… in floating point, and a level short when cut off.
    assert len(exponential_offsets(244, 2)) == 6
    assert len(exponential_offsets(243, 2)) == 5
    assert exponential_offsets(5, 10**12) == [[1, 2, 3, 4]]
    assert exponential_offsets(1, 2) == exponential_offsets(0, 2) == []


@pytest.mark.parametrize("peers", [1, 2, 3])
def test_everybody_sends_and_receives_as_many_models_as_declared(peers):
    for n in range(2, 55):
        for t, offsets in enumerate(exponential_offsets(n, peers)):
            links = links_of(n, peers, t)
            assert not links.diagonal().any()
            assert (links.sum(axis=0) == len(offsets)).all()
            assert (links.sum(axis=1) == len(offsets)).all()
            assert 1 <= len(offsets) <= peers
        if peers < n:
            assert offsets_of(links_of(n, peers, 0)) == list(range(1, peers + 1))


def test_plain_averaging_with_one_peer_gives_the_known_vectors():
    expected = [[3, 1.5, 2.5, 3.5, 4.5], [3.25, 3, 2.75, 2.5, 3.5], [3.125, 2.875, 2.625, 3, 3.375]]
    x = reverse = np.arange(1.0, 6.0)
    for t, vector in enumerate(expected):
        x, reverse = averaging(links_of(5, 1, t)) @ x, averaging(links_of(5, 1, t).T) @ reverse
        np.testing.assert_allclose(x, vector, atol=1e-12)
        assert not np.allclose(reverse, vector)


def test_two_peers_weigh_a_third_each():
    np.testing.assert_allclose(averaging(links_of(5, 2, 0))[0], np.array([1, 0, 0, 1, 1]) / 3)
    np.testing.assert_allclose(averaging(links_of(5, 2, 1))[0], np.array([1, 0, 1, 0, 1]) / 3)
    assert not np.allclose(averaging(links_of(5, 2, 0).T)[0], np.array([1, 0, 0, 1, 1]) / 3)


@pytest.mark.parametrize(("peers", "n"), [(peers, n) for peers, norms in NORMS.items() for n in norms])
def test_a_period_averages_as_well_as_is_known(peers, n):
    rounds = [links_of(n, peers, t) for t in range(len(exponential_offsets(n, peers)))]
    assert period_norm(n, rounds) == pytest.approx(NORMS[peers][n], abs=5e-5)
    assert not np.isclose(period_norm(n, rounds[:-1]), NORMS[peers][n], atol=5e-5), "a level too few shows"


def test_a_model_sent_to_oneself_would_spoil_six_servers():
    product = np.eye(6)
    for links, weight in ((links_of(6, 2, 0), 1 / 3), (links_of(6, 2, 1), 1 / 3)):
        product = (weight * links + np.diag(1 - weight * links.sum(axis=1))) @ product
    assert np.linalg.norm(product - 1 / 6, 2) > 0.1


def test_absent_servers_are_skipped_in_the_order_of_the_ring_and_dead_links_left_out():
    active = np.array([True, False, True, True, True])
    reachable = all_links(5)
    reachable[4, 3] = False
    links = links_of(5, 1, 0, active=active, reachable=reachable)
    assert sorted(map(tuple, np.argwhere(links).tolist())) == [(0, 4), (2, 0), (3, 2)]
    assert not links_of(5, 1, 0, active=np.arange(5) == 2).any()


@pytest.mark.parametrize("peers", [0, -1])
def test_a_server_must_send_something(peers):
    with pytest.raises(ConfigError, match=r"policy\.peers"):
        ExponentialGraph(peers)
