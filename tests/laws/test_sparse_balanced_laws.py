"""Balanced links among candidates: sums are exact, draws keep degrees and probabilities, and what cannot be is said."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hatdfed.core.candidates import regular_graph
from hatdfed.core.drawing.regular import balance
from hatdfed.core.drawing.regular_sparse import UNITS, balanced_units, halving_rounding
from hatdfed.core.links import LinkTable
from hatdfed.randomness import stream

problems = st.integers(3, 30).flatmap(
    lambda n: st.integers(2, n - 1).flatmap(
        lambda d: st.tuples(st.just(n), st.just(d), st.integers(1, d), st.floats(0, 30), st.integers(0, 2**32))
    )
)


def problem(size, width, spread_of_weights, seed):
    candidates = regular_graph(size, width, stream(seed, "graph"))
    log_weights = spread_of_weights * stream(seed, "weights").random(candidates.shape)
    return log_weights, np.ones(candidates.shape, dtype=bool), candidates, np.ones(size, dtype=bool)


def column_sums(table, candidates):
    return np.bincount(candidates.ravel(), table.ravel(), minlength=len(table))


@settings(deadline=None)
@given(problems)
def test_rows_and_columns_sum_to_the_degree_exactly_and_so_do_the_draws(case):
    size, width, degree, spread_of_weights, seed = case
    log_weights, possible, candidates, active = problem(size, width, spread_of_weights, seed)
    units = balanced_units(log_weights, possible, candidates, active, degree)
    assert units is not None  # a regular graph always has such a choice
    assert units.min() >= 0
    assert units.max() <= UNITS
    assert (units.sum(axis=1) == degree * UNITS).all()
    assert (column_sums(units, candidates) == degree * UNITS).all()
    drawn = halving_rounding(units, candidates, stream(seed, "draw"))
    assert not drawn[units == 0].any()
    assert drawn[units == UNITS].all()
    assert (drawn.sum(axis=1) == degree).all()
    assert (column_sums(drawn, candidates) == degree).all()


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 2**32), st.floats(0.05, 0.4))
def test_servers_that_are_away_neither_hear_nor_are_heard(seed, away):
    log_weights, possible, candidates, active = problem(30, 10, 4.0, seed)
    active = stream(seed, "away").random(30) >= away
    possible = active[:, None] & active[candidates]
    units = balanced_units(log_weights, possible, candidates, active, 2)
    if units is None:  # it may be that somebody has fewer than two candidates left, or some have the same
        return
    assert not units[~possible].any()
    assert (units.sum(axis=1) == 2 * UNITS * active).all()
    assert (column_sums(units, candidates) == 2 * UNITS * active).all()


def test_most_fleets_with_servers_away_can_be_balanced():
    found = 0
    for seed in range(40):
        log_weights, _, candidates, _ = problem(30, 10, 4.0, seed)
        active = stream(seed, "away").random(30) >= 0.2
        found += balanced_units(log_weights, active[:, None] & active[candidates], candidates, active, 1) is not None
    assert found == 40


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 2**32), st.floats(0.02, 0.5), st.integers(1, 4))
def test_links_that_cannot_be_drawn_have_no_units(seed, broken, degree):
    log_weights, possible, candidates, active = problem(16, 7, 20.0, seed)
    possible = stream(seed, "broken").random(possible.shape) >= broken
    units = balanced_units(log_weights, possible, candidates, active, degree)
    if units is None:
        return
    assert not units[~possible].any()
    assert (units.sum(axis=1) == degree * UNITS).all()
    assert (column_sums(units, candidates) == degree * UNITS).all()


def test_what_cannot_be_balanced_is_not():
    log_weights, possible, candidates, active = problem(8, 3, 1.0, 0)
    possible[2] = False
    assert balanced_units(log_weights, possible, candidates, active, 1) is None
    log_weights, possible, candidates, active = problem(8, 3, 1.0, 0)
    possible[candidates == 5] = False
    assert balanced_units(log_weights, possible, candidates, active, 1) is None
    assert balanced_units(log_weights, possible, candidates, np.zeros(8, dtype=bool), 1) is None


def test_two_who_can_hear_the_same_one_only_cannot_be_balanced():
    candidates = np.array([[1, 2], [2, 3], [0, 3], [0, 1]])
    possible = np.array([[True, False], [True, True], [True, True], [False, True]])  # 0 and 3 can hear 1 alone
    assert balanced_units(np.zeros((4, 2)), possible, candidates, np.ones(4, dtype=bool), 1) is None


@pytest.mark.parametrize("degree", [1, 3])
def test_probabilities_are_near_those_of_the_matrix(degree):
    log_weights, possible, candidates, active = problem(20, 19, 3.0, 1)
    units = balanced_units(log_weights, possible, candidates, active, degree)
    links = LinkTable.of_candidates(candidates)
    matrix = balance(links.to_dense(log_weights), ~np.eye(20, dtype=bool), degree)
    assert units is not None
    assert matrix is not None
    np.testing.assert_allclose(links.to_dense(units / UNITS), matrix, atol=4 / UNITS)


@pytest.mark.parametrize(("size", "width", "degree"), [(12, 4, 1), (9, 6, 3)])
def test_links_are_drawn_as_often_as_their_units_say(size, width, degree):
    log_weights, possible, candidates, active = problem(size, width, 3.0, 2)
    units = balanced_units(log_weights, possible, candidates, active, degree)
    draws = 1500
    count = sum(halving_rounding(units, candidates, stream(3, "draw", t)).astype(int) for t in range(draws))
    probability = units / UNITS
    deviation = np.sqrt(np.maximum(probability * (1 - probability) / draws, 1e-12))
    assert np.ptp(probability) > 0.2
    assert np.abs((count / draws - probability) / deviation).max() < 4.5
