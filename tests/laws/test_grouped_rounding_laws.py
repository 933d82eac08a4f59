"""grouped_rounding, the form for very many links of which few are drawn: the laws of dependent_rounding hold for it."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hatdfed.core.drawing.budgeted import cap_to_budget, dependent_rounding, grouped_rounding, is_valid_draw
from hatdfed.randomness import stream


@given(st.integers(1, 80), st.integers(1, 12), st.floats(0.1, 30), st.integers(0, 2**32), st.data())
def test_a_draw_has_exactly_the_budgeted_size_and_keeps_the_sure_ones(n, size, spread, seed, data):
    budget = data.draw(st.integers(0, n))
    rng = np.random.default_rng(seed)
    p = cap_to_budget(rng.normal(0, spread, n), budget)
    before = p.copy()
    drawn = grouped_rounding(p, rng, min(size, n))
    assert drawn.sum() == budget
    assert is_valid_draw(drawn, p)
    np.testing.assert_array_equal(p, before)


@pytest.mark.parametrize(("size", "budget", "spread"), [(8, 12, 1.5), (5, 57, 1.5), (64, 3, 1.0)])
def test_marginals_hold_within_four_sigma(size, budget, spread):
    rng, repeats = stream(0, "grouped marginals", size, budget), 2_000
    p = cap_to_budget(rng.normal(0, spread, 190), budget)
    frequency = sum(grouped_rounding(p, rng, size) for _ in range(repeats)) / repeats
    assert (np.abs(frequency - p) <= 4 * np.sqrt(p * (1 - p) / repeats) + 1e-12).all()


def test_pairs_are_never_positively_correlated_and_none_is_shut_out():
    rng, repeats, n = stream(0, "grouped pairs"), 5_000, 12
    p = np.linspace(0.05, 0.45, n)
    draws = np.array([grouped_rounding(p, rng, 3) for _ in range(repeats)], dtype=float)
    together, product = draws.T @ draws / repeats, np.outer(p, p)
    for i, j in itertools.combinations(range(n), 2):
        assert 0 < together[i, j] <= product[i, j] + 4 * np.sqrt(product[i, j] / repeats)


def test_links_of_different_rows_meet_as_often_as_after_a_shuffle():
    """Equal links in groups of 4 that sum to 1/2: how often two are drawn together says how often they met."""
    rng, repeats, groups = stream(0, "grouped rows"), 4_000, 8
    p = np.full(4 * groups, 1 / 8)
    draws = np.array([grouped_rounding(p, rng, 4) for _ in range(repeats)], dtype=float)
    together = draws.T @ draws / repeats
    row = np.arange(4 * groups) // groups
    # Four of eight groups are drawn, every set of four as likely as any other, and one link of four in each.
    apart = 4 / 8 * 3 / 7 / 16
    for same_row, expected in ((True, apart), (False, (1 - 1 / groups) * apart)):
        pairs = together[((row[:, None] == row) == same_row) & ~np.eye(4 * groups, dtype=bool)]
        assert (np.abs(pairs - expected) < 4.5 * np.sqrt(expected / repeats)).all()
    # Of six pairs in a draw 1.5 are of one row, where a shuffle of all links would have 1.35.
    in_row = draws.reshape(repeats, 4, groups).sum(axis=2)
    same_row = (in_row * (in_row - 1) / 2).sum(axis=1)
    assert abs(same_row.mean() - 112 * apart) < 4 * same_row.std() / np.sqrt(repeats)


@pytest.mark.parametrize("spread", [0.3, 3.0, 8.0])
def test_hundreds_of_thousands_of_links_are_drawn_by_their_probabilities(spread):
    rng, repeats, n, budget = stream(0, "grouped large"), 60, 300 * 299, 360
    p = cap_to_budget(rng.normal(0, spread, n), budget)
    drawn = np.zeros(n)
    for _ in range(repeats):
        draw = dependent_rounding(p, rng)
        assert is_valid_draw(draw, p)
        drawn += draw
    # Links are too many to be counted one by one: by their probability, in twenty classes of equal size.
    for links in np.array_split(np.argsort(p), 20):
        expected = repeats * p[links].sum()
        assert abs(drawn[links].sum() - expected) <= 4 * np.sqrt(expected) + 1e-9


def test_large_draws_differ_and_can_be_repeated():
    p = cap_to_budget(stream(0, "grouped weights").normal(0, 1, 70_000), 300)
    one, again, other = (dependent_rounding(p, stream(seed, "grouped draw")) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, again)
    assert not np.array_equal(one, other)


def test_nothing_is_drawn_where_nothing_can_be():
    assert not dependent_rounding(np.zeros(70_000), stream(0, "nothing")).any()
