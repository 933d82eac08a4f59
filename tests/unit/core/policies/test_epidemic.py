"""Epidemic learning: the law of what arrives, and random graphs that are regular."""

import numpy as np
import pytest

from hatdfed.core.links import all_links
from hatdfed.core.policies.epidemic import EpidemicLocal, EpidemicOracle, _draw_lattice, random_regular_graph
from hatdfed.errors import ConfigError
from hatdfed.randomness import stream
from hatdfed.testing import TopologyPolicyLaws, policy_context

REPEATS = 4000


class TestOracleWithOneNeighbour(TopologyPolicyLaws):
    impossible_sizes = (3, 5, 7)

    def policy(self):
        return EpidemicOracle(degree=1)


def drawn(policy, n, rng, **masks):
    return policy.propose(None, policy_context(n, **masks), rng)


def within_four_sigma(found, mean, std, repeats=REPEATS):
    return np.abs(found - mean) < 4 * std / np.sqrt(repeats)


def test_what_arrives_is_binomial_and_weighs_as_is_known():
    rng = stream(0, "arrivals")
    context = policy_context(5)
    links = np.stack([EpidemicLocal(2).propose(None, context, rng).topology.links for _ in range(REPEATS)])
    assert (links.sum(axis=1) == 2).all(), "everybody sends two models"
    arrivals = links.sum(axis=2)[:, 0]
    for r, chance in enumerate((0.0625, 0.25, 0.375, 0.25, 0.0625)):
        assert within_four_sigma((arrivals == r).mean(), chance, np.sqrt(chance * (1 - chance)))
    own = 1 / (arrivals + 1)
    assert within_four_sigma(own.mean(), 0.3875, own.std())
    other = links[:, 0, 3] * own
    assert within_four_sigma(other.mean(), 0.153125, other.std())
    assert not (links.sum(axis=2) == 2).all(), "senders choose; receivers who choose would all get two"


def test_every_link_has_the_probability_that_is_given():
    rng = stream(0, "local")
    reachable = all_links(6)
    reachable[[0, 1, 2], 3] = False
    active = np.array([True, True, True, True, True, False])
    context = policy_context(6, active=active, reachable=reachable)
    draws = [EpidemicLocal(2).propose(None, context, rng) for _ in range(REPEATS)]
    p = draws[0].links.to_dense(draws[0].propensity)
    found = np.mean([draw.topology.links for draw in draws], axis=0)
    assert within_four_sigma(found, p, np.sqrt(p * (1 - p)) + 1e-9).all()
    assert p[4, 3] == 1, "only one receiver is left to server 3"
    assert p[0, 1] == 0.5
    assert p[5].sum() == p[:, 5].sum() == 0


def test_a_fanout_larger_than_the_fleet_reaches_everybody():
    for n in (2, 3):
        draw = drawn(EpidemicLocal(5), n, stream(0, "few"))
        np.testing.assert_array_equal(draw.topology.links, all_links(n))
        np.testing.assert_array_equal(draw.propensity, 1)
    alone = drawn(EpidemicLocal(), 3, stream(0, "alone"), active=np.arange(3) == 1)
    assert alone.topology.num_links == 0
    assert not alone.propensity.any()


@pytest.mark.parametrize("degree", [1, 2, 3, 4, 7])
def test_the_oracles_graph_is_regular_and_keeps_the_mean(degree):
    for n in (*range(degree + 1, 16), 20, 33, 53, 54):
        if n * degree % 2:
            continue
        draw = drawn(EpidemicOracle(degree), n, stream(0, "regular", n))
        links, mixing = draw.topology.links, draw.mixing_matrix
        np.testing.assert_array_equal(links, links.T)
        assert (links.sum(axis=1) == degree).all()
        np.testing.assert_allclose(mixing[links], 1 / (degree + 1))
        np.testing.assert_allclose(mixing.sum(axis=0), 1, atol=1e-12)
        x = stream(1, "values", n).normal(size=n)
        assert (mixing @ x).mean() == pytest.approx(x.mean(), abs=1e-12)


def test_the_oracle_is_uniform_over_graphs_with_few_neighbours():
    rng, repeats = stream(0, "graphs"), 7000
    seen: dict[bytes, int] = {}
    for _ in range(repeats):
        key = random_regular_graph(6, 2, rng).tobytes()
        seen[key] = seen.get(key, 0) + 1
    assert len(seen) == 70, "60 hexagons and 10 pairs of triangles"
    p = 1 / 70
    assert within_four_sigma(np.array(list(seen.values())) / repeats, p, np.sqrt(p * (1 - p)), repeats).all()


@pytest.mark.parametrize(("n", "degree"), [(5, 2), (8, 3), (12, 5), (9, 6)])
def test_the_oracle_is_uniform_over_links(n, degree):
    rng, repeats = stream(0, "links", n), 400
    context = policy_context(n)
    draws = [EpidemicOracle(degree).propose(None, context, rng) for _ in range(repeats)]
    p = degree / (n - 1)
    np.testing.assert_allclose(draws[0].propensity, p)
    found = np.mean([draw.topology.links for draw in draws], axis=0)[all_links(n)]
    assert within_four_sigma(found, p, np.sqrt(p * (1 - p)), repeats).all()


@pytest.mark.parametrize(("n", "degree"), [(5, 4), (6, 3), (54, 26), (53, 10), (54, 51), (20, 9)])
def test_dense_graphs_are_found_too_and_the_last_resort_is_regular(n, degree):
    for graph in (random_regular_graph(n, degree, stream(0)), _draw_lattice(n, degree, stream(0))):
        np.testing.assert_array_equal(graph, graph.T)
        assert (graph.sum(axis=1) == degree).all()
        assert not graph.diagonal().any()


@pytest.mark.parametrize(("present", "degree", "left"), [(5, 3, 2), (4, 3, 3), (3, 3, 2), (2, 3, 1), (1, 3, 0)])
def test_absent_servers_lower_the_degree_only_where_they_must(present, degree, left):
    draw = drawn(EpidemicOracle(degree), 6, stream(0), active=np.arange(6) < present)
    np.testing.assert_array_equal(draw.topology.links.sum(axis=1), [left] * present + [0] * (6 - present))
    np.testing.assert_allclose(draw.mixing_matrix.sum(axis=1), 1)


def test_an_edge_that_is_dead_one_way_is_dead_both_ways():
    reachable = all_links(4)
    reachable[0, 1] = False
    draw = drawn(EpidemicOracle(3), 4, stream(0), reachable=reachable)
    assert draw.topology.num_links == 10
    propensity = draw.links.to_dense(draw.propensity)
    assert propensity[1, 0] == propensity[0, 1] == 0
    np.testing.assert_allclose(draw.mixing_matrix[:2], [[0.5, 0, 0.25, 0.25], [0, 0.5, 0.25, 0.25]])


@pytest.mark.parametrize(("n", "degree"), [(2, 2), (5, 3), (4, 4), (7, 1)])
def test_graphs_that_do_not_exist_are_refused(n, degree):
    with pytest.raises(ConfigError, match=f"policy.degree is {degree}"):
        drawn(EpidemicOracle(degree), n, stream(0))


def test_settings_below_one_are_refused():
    with pytest.raises(ConfigError, match=r"policy\.fanout"):
        EpidemicLocal(0)
    with pytest.raises(ConfigError, match=r"policy\.degree"):
        EpidemicOracle(0)
