"""docs/theory.md, section 8: groups are exact where that is proved, and the recorded draws respect the bounds."""

import importlib.util
import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.group_matrices import find_groups, find_support

from hatdfed.core import groups
from hatdfed.core.policies import trusted_links
from hatdfed.core.policies.trusted_links import TrustedLinks
from hatdfed.server.harm import measure_harm
from hatdfed.server.inbox import Comparison, Probe

ROOT = Path(__file__).resolve().parents[2]
RECORDED = json.loads((ROOT / "benchmarks/results/group-recovery.json").read_text(encoding="utf-8"))

_spec = importlib.util.spec_from_file_location("benchmark_group_recovery", ROOT / "benchmarks/group_recovery.py")
bench = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(bench)

seeds = st.integers(0, 2**32)
some = settings(max_examples=60)


def draw_groups(rng, size, most):
    return rng.integers(0, most, size)


def off_diagonal(size):
    return ~np.eye(size, dtype=bool)


def is_same(found, group):
    return bool(((found[:, None] == found) == (group[:, None] == group)).all())


def connects(judged, members):
    """Whether judged pairs connect them."""
    reached = {int(members[0])}
    for _ in members:
        reached |= {int(j) for i in reached for j in members if judged[i, j]}
    return len(reached) == len(members)


# Theorem 2 and Corollary 3


@some
@given(st.integers(1, 14), st.integers(1, 5), st.floats(0, 1), seeds)
def test_groups_are_exact_if_all_pairs_are_judged_and_have_the_right_sign(size, most, both, seed):
    rng = np.random.default_rng(seed)
    group = draw_groups(rng, size, most)
    verdict = np.where(group[:, None] == group, 1, -1) * rng.uniform(0.01, 1, (size, size))
    turn = rng.random((size, size))
    known = (turn < turn.T) | (off_diagonal(size) & (rng.random((size, size)) < both))  # one side, or both
    assert is_same(find_groups(verdict * known, known), group)


@some
@given(st.integers(2, 14), st.floats(0.1, 1), seeds)
def test_two_groups_are_exact_if_judged_pairs_connect_them_and_have_the_right_sign(size, share, seed):
    rng = np.random.default_rng(seed)
    group = draw_groups(rng, size, 2)
    known = off_diagonal(size) & (rng.random((size, size)) < share)
    assume(all(connects(known | known.T, np.flatnonzero(group == each)) for each in np.unique(group)))
    verdict = np.where(group[:, None] == group, 1, -1) * rng.uniform(0.01, 1, (size, size))
    assert is_same(find_groups(verdict * known, known), group)


@some
@given(st.integers(4, 14), st.integers(1, 4), st.floats(0.05, 0.6), seeds)
def test_some_good_verdicts_across_do_no_harm_if_those_inside_are_better(size, most, theta, seed):
    rng = np.random.default_rng(seed)
    group = draw_groups(rng, size, most)
    belong, known = group[:, None] == group, off_diagonal(size)
    mean = np.where(belong, rng.uniform(1.5 * theta, 1, (size, size)) + 0.001, rng.uniform(-1, theta, (size, size)))
    mean = np.triu(mean, 1) + np.triu(mean, 1).T
    for one, other in itertools.combinations(np.unique(group), 2):
        assume(mean[np.ix_(group == one, group == other)].sum() < -1e-9)
    assert is_same(find_groups(mean * known, known), group)


def test_the_weights_are_those_of_the_page():
    both, one = np.array([[0.0, 0.5], [-0.2, 0.0]]), np.array([[0.0, 0.5], [0.0, 0.0]])
    for verdict, support, weight in ((both, 0.3, 2.0), (one, 0.25, 0.5), (0 * both, 0.0, 0.3)):
        assert find_support(verdict, verdict != 0, 0, 1) == (pytest.approx(support), weight)
    assert groups._DOUBT == 1
    assert trusted_links._FEW_SAMPLES == bench.FEW_SAMPLES


def test_hearsay_joins_those_who_never_judged_each_other():
    """Two single servers have no labels in common, and both disagree with all others."""
    group, known = np.array([0, 0, 0, 1, 2]), off_diagonal(5)
    known[3, 4] = known[4, 3] = False
    verdict = np.where(group[:, None] == group, 0.8, -0.8) * known
    assert find_groups(verdict, known).tolist() == [0, 0, 0, 1, 1]


def test_faint_hearsay_joins_nobody_and_one_bad_verdict_outweighs_it():
    group, known = np.array([0, 0, 0, 1, 2]), off_diagonal(5)
    known[3, 4] = known[4, 3] = False
    faint = np.where(group[:, None] == group, 0.8, -0.5) * known  # hearsay of 0.25
    assert find_groups(faint, known).tolist() == [0, 0, 0, 1, 2]
    known[3, 4] = True
    judged = np.where(group[:, None] == group, 0.8, -0.8) * known
    assert find_groups(judged, known).tolist() == [0, 0, 0, 1, 2]


@pytest.mark.parametrize(("number", "size"), [(2, 3), (3, 4), (4, 3), (5, 2)])
def test_hearsay_about_a_pair_of_two_groups(number, size):
    group = np.repeat(np.arange(number), size)
    known = off_diagonal(len(group))
    known[0, -1] = known[-1, 0] = False
    verdict = np.where(group[:, None] == group, 0.5, -0.5) * known
    support, weight = find_support(verdict, known, 0, len(group) - 1)
    expected = 0.25 * ((number - 4) * size + 2) / (len(group) - 2)
    assert support / weight == pytest.approx(expected)


# Lemma 1


@some
@given(st.integers(3, 60), st.floats(0.1, 1), seeds)
def test_the_sign_of_a_verdict_is_that_of_a_mean_over_samples(samples, bar, seed):
    rng = np.random.default_rng(seed)
    own, theirs, weight = rng.random((3, 1, samples))
    guess = 0.2
    comparison = Comparison(
        *(torch.from_numpy(each) for each in (own, theirs, weight)), torch.tensor([guess]), torch.ones(1)
    )
    probe = Probe(torch.zeros(1, samples), torch.ones(samples, dtype=torch.bool), comparison)
    harm, evidence, _ = (float(each[0]) for each in measure_harm(probe, math.log(10)))
    assume(evidence > 0)
    assert evidence == pytest.approx(weight.sum() ** 2 / (weight**2).sum())
    mean = (weight * (theirs - (1 - bar) * own - bar * guess)).sum() / weight.sum()
    assume(abs(mean) > 1e-6)
    assert (harm < bar) == (mean > 0)


# Proposition 4


def test_after_a_few_bad_verdicts_a_running_mean_is_bad_whatever_it_was():
    memory = TrustedLinks.memory
    assert (1 + memory) / (1 - memory) == pytest.approx(9)
    for bad in (0.1, 0.5, 1.0):
        value = 1.0
        for _ in range(math.ceil(math.log(1 + 1 / bad) / math.log(1 / memory))):
            value = memory * value - (1 - memory) * bad
        assert value <= 1e-12


# Theorem 6, and what liars with honest models can do


@some
@given(st.integers(1, 3), st.integers(1, 5), st.floats(0.1, 1), st.floats(0, 1), seeds)
def test_liars_whose_models_are_bad_cannot_join_or_split_groups(number, smallest, nu, praise, seed):
    rng = np.random.default_rng(seed)
    group = np.repeat(np.arange(number), smallest + rng.integers(0, 3, number))
    honest = len(group)
    size = honest + math.floor(2 * nu * smallest)
    belong = group[:, None] == group
    verdict = rng.uniform(-1, -nu, (size, size))
    inside = 0.75 * (1 - nu)
    verdict[:honest, :honest] = np.where(belong, rng.uniform(inside, 1, belong.shape) + 1e-6, verdict[:honest, :honest])
    verdict[honest:] = np.where(rng.random((size - honest, size)) < praise, 1.0, -1.0)
    known = off_diagonal(size)
    known[honest:] &= rng.random((size - honest, size)) < 0.9
    assert is_same(find_groups(verdict * known, known)[:honest], group)


@pytest.mark.parametrize("mu", [0.15, 0.31, 0.55, 0.7])
def test_liars_with_honest_models_separate_one_server_if_they_are_enough(mu):
    enough = math.floor(2 * mu / (1 - mu)) + 1
    for liars, is_separated in ((enough, True), (enough - 1, False)):
        size = liars + 6
        verdict = np.full((size, size), mu)
        verdict[:liars] = -1.0
        verdict[:liars, : liars + 1] = 1.0
        found = find_groups(verdict * off_diagonal(size), off_diagonal(size))[liars:]
        assert len(set(found[1:].tolist())) == 1
        assert (found[0] != found[1]) == is_separated


# The recorded draws


def case_of(row):
    return bench.Case(tuple(row["sizes"]), row["mean"], row["known"], row["liars"], row["attack"])


def test_all_cases_are_recorded_with_the_bounds_of_the_code():
    assert [case_of(row) for row in RECORDED["rows"]] == list(bench.cases())
    assert (RECORDED["draws"], RECORDED["terms"]) == (bench.DRAWS, bench.TERMS)
    for row in RECORDED["rows"]:
        bound = None if row["liars"] else bench.failure_bound(row["sizes"], row["mean"], row["known"])
        assert row["failure_bound"] == (None if bound is None else pytest.approx(bound))
    for row in RECORDED["needed"]:
        links = row["servers"] * (row["servers"] - 1)
        exponent = 2 * row["samples"] * row["margin"] ** 2 / (2 - TrustedLinks.bar) ** 2
        assert 0.9 * RECORDED["failure"] < links * math.exp(-exponent) <= RECORDED["failure"]


def test_the_recorded_draws_respect_the_bounds():
    """Those that are not vacuous, within four standard errors of a share that is as large as the bound."""
    bounded = [row for row in RECORDED["rows"] if row["failure_bound"] is not None and row["failure_bound"] < 1]
    assert len(bounded) >= 20
    for row in bounded:
        bound = row["failure_bound"]
        most = bound + 4 * math.sqrt(bound * (1 - bound) / RECORDED["draws"])
        size, mean_square = row["servers"], sum(each**2 for each in row["sizes"]) / row["servers"]
        assert 1 - row["exact"] <= most
        assert row["wrong_links"] <= (size - mean_square) * most
        assert row["missed_links"] <= (mean_square - 1) * most


def test_the_recorded_verdicts_with_memory_respect_the_bound_and_do_not_vanish():
    for row in RECORDED["memory"]:
        assert row["limit_bound"] == pytest.approx(math.exp(-9 * bench.TERMS * row["mean"] ** 2 / 2))
        for number, running, plain in zip(RECORDED["judgements"], row["running"], row["plain"], strict=True):
            assert plain <= math.exp(-number * bench.TERMS * row["mean"] ** 2 / 2)
            if number >= 100:
                assert 0 < running <= row["limit_bound"]
                assert plain < running


@pytest.mark.parametrize("place", [0, 30, 200])
def test_the_recorded_figures_can_be_made_again(place):
    row = RECORDED["rows"][place]
    assert bench.measure(case_of(row)) == pytest.approx(
        [row[name] for name in ("exact", "wrong_links", "missed_links")]
    )


def test_theorem_6_is_vacuous_in_the_recorded_draws():
    """As the page says: Hoeffding does not show that the verdicts on liars and inside groups satisfy it."""
    factor = bench.TERMS / (bench.TERMS + bench.FEW_SAMPLES)
    for row in RECORDED["rows"]:
        liars = round(row["liars"] * row["servers"])
        for nu in np.linspace(0, 1, 101) if liars else ():
            above, below = row["mean"] - nu / factor, row["mean"] - 0.75 * (1 - nu) / factor
            on_liars = liars * (row["servers"] - liars) * math.exp(-bench.TERMS * max(above, 0) ** 2 / 2)
            inside = math.exp(-bench.TERMS * max(below, 0) ** 2)  # for a single pair
            assert on_liars + inside >= 1
