"""cap_to_budget: probabilities that sum to the budget, however wild the weights."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hatdfed.core.drawing.budgeted import cap_to_budget, clip_to_one
from hatdfed.errors import ConfigError


@st.composite
def weights_and_budget(draw, spread=1000.0):
    logs = draw(st.lists(st.floats(-spread, spread), min_size=1, max_size=60))
    return np.array(logs), draw(st.integers(1, len(logs)))


def capped_by_hand(weights, budget):
    """The definition in exact arithmetic: cap what exceeds 1, share the rest, repeat."""
    capped = set()
    while True:
        rest = sum(w for i, w in enumerate(weights) if i not in capped)
        share = [Fraction(1) if i in capped else (budget - len(capped)) * w / rest for i, w in enumerate(weights)]
        over = {i for i, p in enumerate(share) if p > 1}
        if not over:
            return share
        capped |= over


@pytest.mark.parametrize(
    ("weights", "budget", "expected"),
    [
        ((8, 2, 1, 1), 2, (1, 1 / 2, 1 / 4, 1 / 4)),
        ((10, 6, 2, 1, 1), 3, (1, 1, 1 / 2, 1 / 4, 1 / 4)),
        ((100, 50, 1, 1, 1, 1), 2, (1, 25 / 27, *[1 / 54] * 4)),
        ((1, 1, 1, 1, 1), 2, [2 / 5] * 5),
    ],
)
def test_capping_gives_the_probabilities_worked_out_by_hand(weights, budget, expected):
    np.testing.assert_allclose(cap_to_budget(np.log(weights), budget), expected, atol=1e-12)


@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=40), st.data())
def test_capping_agrees_with_exact_arithmetic(weights, data):
    budget = data.draw(st.integers(1, len(weights)))
    exact = [float(p) for p in capped_by_hand([Fraction(w) for w in weights], budget)]
    np.testing.assert_allclose(cap_to_budget(np.log(weights), budget), exact, atol=1e-9)


@given(weights_and_budget())
def test_probabilities_are_valid_and_sum_to_the_budget(case):
    logs, budget = case
    p = cap_to_budget(logs, budget)
    assert np.isfinite(p).all()
    assert (p >= 0).all()
    assert (p <= 1).all()
    assert abs(p.sum() - budget) <= 1e-9


@given(weights_and_budget(spread=20.0), st.floats(-1e4, 1e4))
def test_only_differences_of_log_weights_count(case, shift):
    logs, budget = case
    np.testing.assert_allclose(cap_to_budget(logs + shift, budget), cap_to_budget(logs, budget), atol=1e-8)


@given(weights_and_budget(spread=20.0), st.randoms(use_true_random=False))
def test_renaming_links_renames_their_probabilities(case, random):
    logs, budget = case
    order = list(range(len(logs)))
    random.shuffle(order)
    np.testing.assert_allclose(cap_to_budget(logs[order], budget), cap_to_budget(logs, budget)[order], atol=1e-9)


@given(weights_and_budget(spread=20.0))
def test_a_larger_weight_never_has_a_smaller_probability(case):
    logs, budget = case
    p = cap_to_budget(logs, budget)
    assert (np.diff(p[np.argsort(logs, kind="stable")]) >= -1e-9).all()


@given(weights_and_budget())
def test_capping_leaves_its_input_alone(case):
    logs, budget = case
    before = logs.copy()
    cap_to_budget(logs, budget)
    np.testing.assert_array_equal(logs, before)


def test_log_weights_in_the_thousands_neither_overflow_nor_vanish():
    p = cap_to_budget(np.array([2000.0, 1999.3, 0.0, -5.0, -3.0, 1.0]), 2)
    np.testing.assert_array_equal(p, [1, 1, 0, 0, 0, 0])


def test_weights_that_fall_off_link_by_link_cap_exactly_the_largest():
    p = cap_to_budget(-1000.0 * np.arange(5000), 1200)
    np.testing.assert_allclose(p, (np.arange(5000) < 1200).astype(float), atol=1e-12)


def test_a_large_fleet_sums_to_its_budget():
    logs = np.random.default_rng(0).normal(0, 3, 999_000)
    assert abs(cap_to_budget(logs, 299_700).sum() - 299_700) <= 1e-9 * 299_700


def test_links_that_cannot_be_drawn_get_nothing():
    p = cap_to_budget(np.array([-np.inf, 0.0, 0.0, -np.inf, 0.0]), 2)
    np.testing.assert_allclose(p, [0, 2 / 3, 2 / 3, 0, 2 / 3])


@pytest.mark.parametrize("budget", [-1, 4])
def test_a_budget_that_cannot_be_met_is_refused(budget):
    with pytest.raises(ConfigError, match="between 0 and 3"):
        cap_to_budget(np.zeros(3), budget)


def test_nan_weights_are_refused():
    with pytest.raises(ValueError, match="numbers"):
        cap_to_budget(np.array([0.0, np.nan]), 1)


@pytest.mark.parametrize(("weights", "budget", "clipped_sum"), [((8, 2, 1, 1), 2, 1.6667), ((10, 6, 2, 1, 1), 3, 2.5)])
def test_plain_clipping_loses_mass_and_capping_does_not(weights, budget, clipped_sum):
    logs = np.log(weights)
    assert clip_to_one(logs, budget).sum() == pytest.approx(clipped_sum, abs=1e-4)
    assert cap_to_budget(logs, budget).sum() == pytest.approx(budget, abs=1e-12)


@pytest.mark.parametrize(
    ("weights", "budget", "exploration", "expected"),
    [
        ((8, 2, 1, 1), 2, 1 / 5, (1, 9 / 20, 11 / 40, 11 / 40)),
        ((10, 6, 2, 1, 1), 3, 1 / 10, (1, 1, 47 / 100, 53 / 200, 53 / 200)),
        ((1, 1, 1, 1, 1), 2, 0.3, [2 / 5] * 5),
        ((9, 1, 1), 2, 1.0, [2 / 3] * 3),
    ],
)
def test_exploration_gives_the_probabilities_worked_out_by_hand(weights, budget, exploration, expected):
    np.testing.assert_allclose(cap_to_budget(np.log(weights), budget, exploration=exploration), expected, atol=1e-12)


@given(weights_and_budget(), st.floats(0, 1))
def test_with_exploration_the_sum_is_still_the_budget_and_nobody_is_below_the_floor(case, exploration):
    logs, budget = case
    p = cap_to_budget(logs, budget, exploration=exploration)
    assert abs(p.sum() - budget) <= 1e-9
    assert (p >= exploration * budget / len(logs) - 1e-12).all()
    assert (p <= 1).all()


@pytest.mark.parametrize("budget", [360, 26_910])
@pytest.mark.parametrize("spread", [3.0, 300.0])
def test_a_large_fleet_is_capped_as_sorting_all_links_would(spread, budget):
    logs = np.random.default_rng(1).normal(0, spread, 300 * 299)
    p = cap_to_budget(logs, budget)
    descending = np.sort(logs)[::-1]
    log_rest = np.logaddexp.accumulate(descending[::-1])[::-1]  # it and all smaller ones
    fits = np.log(budget - np.arange(budget)) + (descending - log_rest)[:budget] <= 0
    num_capped = int(np.argmax(fits))
    largest_uncapped = descending[num_capped]
    share = (budget - num_capped) * np.exp(np.minimum(logs, largest_uncapped) - log_rest[num_capped])
    np.testing.assert_allclose(p, np.where(logs > largest_uncapped, 1.0, share), rtol=1e-9, atol=1e-300)


@pytest.mark.parametrize("exploration", [0.1, 1 / 3, 0.7, 0.9])
def test_with_exploration_all_links_can_be_drawn_whatever_float_dust_says(exploration):
    for n in range(1, 60):
        p = cap_to_budget(np.random.default_rng(n).normal(0, 2, n), n, exploration=exploration)
        np.testing.assert_allclose(p, 1, atol=1e-9)
        assert p.max() <= 1
