"""Balanced links: exact degrees, exact probabilities, nobody left out."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hatdfed.core.drawing.regular import balance, balanced_rounding
from hatdfed.core.links import LinkTable, all_links
from hatdfed.core.policies import priced_links
from hatdfed.core.policies.link_bandit import BanditState
from hatdfed.core.policies.priced_links import BalancedLinks, PricedLinks
from hatdfed.errors import ConfigError
from hatdfed.randomness import stream
from hatdfed.testing import feedback_for, policy_context

SIZES = st.integers(2, 12)


def weights(seed, size, spread):
    return spread * stream(seed, "weights", size).normal(size=(size, size))


@settings(max_examples=60, deadline=None)
@given(SIZES, st.integers(1, 4), st.integers(0, 10_000), st.sampled_from([0.0, 1.0, 5.0]))
def test_rows_and_columns_sum_to_the_degree(size, degree, seed, spread):
    probability = balance(weights(seed, size, spread), all_links(size), degree)
    if degree >= size:
        assert probability is None
        return
    if probability is None:  # far apart and nearly full: not found in time, which is allowed
        assert spread == 5.0
        return
    np.testing.assert_allclose(probability.sum(axis=1), degree, atol=1e-9)
    np.testing.assert_allclose(probability.sum(axis=0), degree, atol=1e-9)
    assert (probability >= 0).all()
    assert (probability <= 1 + 1e-9).all()
    assert not probability.diagonal().any()


def test_equal_weights_give_equal_probabilities():
    probability = balance(np.zeros((5, 5)), all_links(5), 2)
    np.testing.assert_allclose(probability[all_links(5)], 0.5)


def test_a_weight_is_felt():
    log_weights = np.zeros((6, 6))
    log_weights[0, 1] = 2.0
    probability = balance(log_weights, all_links(6), 1)
    assert probability[0, 1] > 2 * probability[0, 2]


@settings(max_examples=60, deadline=None)
@given(SIZES, st.integers(1, 3), st.integers(0, 10_000))
def test_every_draw_has_exactly_the_degrees(size, degree, seed):
    if degree >= size:
        return
    probability = balance(weights(seed, size, 1.0), all_links(size), degree)
    before = probability.copy()
    links = balanced_rounding(probability, stream(seed, "draw"))
    assert (links.sum(axis=0) == degree).all()
    assert (links.sum(axis=1) == degree).all()
    assert (probability[links] > 0).all()
    np.testing.assert_array_equal(probability, before)


@pytest.mark.parametrize(
    ("size", "degree", "draws"), [(2, 1, 500), (4, 1, 2000), (5, 2, 2000), (9, 3, 1500), (16, 2, 400)]
)
def test_links_are_drawn_with_their_probabilities(size, degree, draws):
    probability = balance(weights(1, size, 1.0), all_links(size), degree)
    counts = sum(balanced_rounding(probability, stream(seed, "draw")).astype(int) for seed in range(draws))
    error = np.sqrt(probability * (1 - probability) / draws)
    assert (np.abs(counts / draws - probability) <= 5 * error + 1e-9).all()


def test_what_rounding_leaves_of_tiny_probabilities_leads_nowhere():
    """Probabilities below what counts as open may add up to a link that is open, alone, and all but certain."""
    tiny = 0.4e-9  # settled; three of them leave a link at 1 - 1.2e-9, which is open
    probability = np.full((5, 5), tiny)
    probability[np.arange(5), (np.arange(5) + 1) % 5] = 1 - 3 * tiny
    np.fill_diagonal(probability, 0.0)
    drawn = balanced_rounding(probability, np.random.default_rng(0))
    assert drawn.tolist() == (probability > 0.5).tolist()


@pytest.mark.parametrize("spread", [15.0, 25.0, 40.0])
def test_steep_weights_can_be_drawn(spread):
    rng = np.random.default_rng(1)
    for _ in range(30):
        probability = balance(-spread * rng.random((20, 20)), ~np.eye(20, dtype=bool), 1)
        if probability is not None:
            drawn = balanced_rounding(probability, rng)
            assert drawn.sum(axis=0).tolist() == drawn.sum(axis=1).tolist() == [1] * 20


def test_whole_probabilities_are_kept_as_they_are():
    ring = np.roll(np.eye(5), 1, axis=1)
    np.testing.assert_array_equal(balanced_rounding(ring, stream(0, "draw")), ring.astype(bool))


def test_where_it_cannot_be_it_says_so():
    reachable = all_links(4)
    reachable[2] = False  # hears nobody
    assert balance(np.zeros((4, 4)), reachable, 1) is None
    two_hear_one = all_links(4)
    two_hear_one[0], two_hear_one[1] = [False, False, False, True], [False, False, False, True]
    assert balance(np.zeros((4, 4)), two_hear_one, 1) is None


def test_nobody_is_left_out_while_servers_come_and_go():
    policy = BalancedLinks(degree=1)
    active = np.array([True, True, False, True, True, False])
    draw = policy.propose(policy.init(6), policy_context(6, active=active), stream(0, "draw"))
    np.testing.assert_array_equal(draw.topology.links.sum(axis=1), active)
    np.testing.assert_array_equal(draw.topology.links.sum(axis=0), active)


def test_where_balance_is_impossible_as_many_links_are_drawn():
    reachable = all_links(4)
    reachable[2] = False
    policy = BalancedLinks()
    draw = policy.propose(policy.init(4), policy_context(4, reachable=reachable), stream(0, "draw"))
    assert draw.topology.num_links == 4
    assert not (draw.topology.links & ~reachable).any()


@pytest.mark.parametrize("policy", [PricedLinks(thrift=3.0), BalancedLinks(thrift=3.0)], ids=["free", "balanced"])
def test_cheap_links_are_drawn_more_often(policy):
    context = policy_context(8)
    probability = policy.propose(policy.init(8), context, stream(0, "draw")).propensity
    assert np.corrcoef(probability, context.prices)[0, 1] < -0.6


def test_without_thrift_prices_play_no_part():
    draw = BalancedLinks(thrift=0.0).propose(BalancedLinks().init(5), policy_context(5), stream(0, "draw"))
    np.testing.assert_allclose(draw.propensity, 0.25)


def test_what_is_learned_is_utility_and_prices_stay_known():
    """After many rounds in which one link was worth much and its price is middling, its probability has grown."""
    policy, context = PricedLinks(thrift=1.0, learning_rate=0.1), policy_context(4, prices=np.ones((4, 4)))
    state = policy.init(4)
    for t in range(200):
        draw = policy.propose(state, context, stream(1, "draw", t))
        utility = np.full((4, 4), 0.2)
        utility[1, 2] = 1.0
        feedback = feedback_for(draw, stream(1, "round", t))._replace(utility=context.links.from_dense(utility))
        state = policy.update(state, draw, feedback, context)
    probability = context.links.to_dense(policy.propose(state, context, stream(0, "draw")).propensity)
    assert probability[1, 2] == probability.max() > 0.9


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: PricedLinks(thrift=-1.0), "thrift"),
        (lambda: PricedLinks(learning_rate=2.0), "learning_rate"),
        (lambda: BalancedLinks(degree=0), "degree"),
        (lambda: BalancedLinks(degree=5).propose(BalancedLinks().init(5), policy_context(5), stream(0, "x")), "degree"),
    ],
)
def test_settings_that_cannot_work(make, words):
    with pytest.raises(ConfigError, match=words):
        make()


@pytest.mark.parametrize("spread", [20.0, 50.0, 100.0, 1000.0])
@pytest.mark.parametrize("world", range(8))
def test_nobody_is_left_out_however_far_weights_are_apart(spread, world):
    """Scaling alone would take for ever there."""
    state = BanditState(LinkTable.all_of(5).from_dense(spread * stream(world, "weights").random((5, 5))))
    policy = BalancedLinks(thrift=0.0, learning_rate=0.0)
    draw = policy.propose(state, policy_context(5), stream(world, "draw"))
    links = draw.topology.links
    assert (links.sum(axis=0) == 1).all()
    assert (links.sum(axis=1) == 1).all()
    propensity = draw.links.to_dense(draw.propensity)
    np.testing.assert_allclose(propensity.sum(axis=0), 1.0)
    np.testing.assert_allclose(propensity.sum(axis=1), 1.0)


def test_probabilities_are_exact_there_too(monkeypatch):
    log_weights = LinkTable.all_of(5).from_dense(30.0 * stream(1, "weights").random((5, 5)))
    policy, state = BalancedLinks(thrift=0.0, learning_rate=0.0), BanditState(log_weights)
    for name in ("balance", "balanced_units"):  # the same in all draws, and slow: computed once
        monkeypatch.setattr(priced_links, name, _first_result(getattr(priced_links, name)))
    context = policy_context(5)
    draws = [policy.propose(state, context, stream(seed, "draw")) for seed in range(2000)]
    share = np.mean([draw.drawn for draw in draws], axis=0)
    np.testing.assert_allclose(share, draws[0].propensity, atol=0.05)


def _first_result(function):
    """What `function` returned when it was called first."""
    results = []

    def call(*arguments):
        if not results:
            results.append(function(*arguments))
        return results[0]

    return call
