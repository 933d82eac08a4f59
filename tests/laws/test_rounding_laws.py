"""dependent_rounding: the right number of links, each with exactly its probability."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hatdfed.core.drawing.budgeted import cap_to_budget, dependent_rounding, is_valid_draw, sequential_rounding
from hatdfed.randomness import stream

EXAMPLE = [Fraction(1, 2), Fraction(1, 3), Fraction(2, 3), Fraction(1, 4), Fraction(1, 4)]


class Scripted:
    """A stand-in generator: 0 takes the first branch of every pair, just under 1 the second."""

    def __init__(self, script):
        self.script = iter(script)

    def random(self, size):
        return np.array([0.0 if next(self.script) else np.nextafter(1.0, 0.0) for _ in range(size)])

    def shuffle(self, links):
        raise AssertionError("the order was to be kept")


def settle(first, second):
    """Eq. (18) as printed, in exact arithmetic: (probability, new pair) for both branches."""
    theta, delta = min(1 - first, second), min(first, 1 - second)
    return (
        (delta / (theta + delta), (first + theta, second - theta)),
        (theta / (theta + delta), (first - delta, second + delta)),
    )


def leaves(values, schedule, script=()):
    """Every end of the decision tree: (probability, script of branches, links drawn)."""
    pair = schedule(values)
    if pair is None:
        yield Fraction(1), script, frozenset(i for i, v in enumerate(values) if v == 1)
        return
    i, j = pair
    for branch, (chance, (first, second)) in zip((True, False), settle(values[i], values[j]), strict=True):
        after = list(values)
        after[i], after[j] = first, second
        for probability, rest, drawn in leaves(after, schedule, (*script, branch)):
            yield chance * probability, rest, drawn


def next_in_order(values):
    """The sequential rule: the first two links that are still open."""
    open_links = [i for i, v in enumerate(values) if 0 < v < 1]
    return tuple(open_links[:2]) if len(open_links) > 1 else None


def law(probability, schedule):
    outcome = {}
    for chance, _, drawn in leaves(list(probability), schedule):
        outcome[drawn] = outcome.get(drawn, 0) + chance
    return outcome


def sweeps(values):
    """The tree of `dependent_rounding(shuffle=False)`: whole sweeps over neighbours, in exact arithmetic."""

    def go(values, order, probability, script):
        pairs = list(zip(order[0::2], order[1::2], strict=False))
        if not pairs:
            yield probability, script, frozenset(i for i, v in enumerate(values) if v == 1)
            return
        for branches in itertools.product((True, False), repeat=len(pairs)):
            after, chance, survivors = list(values), probability, []
            for (i, j), branch in zip(pairs, branches, strict=True):
                weight, (after[i], after[j]) = settle(values[i], values[j])[0 if branch else 1]
                chance *= weight
                survivors += [k for k in (i, j) if 0 < after[k] < 1]
            odd = [order[-1]] if len(order) % 2 else []
            yield from go(after, survivors + odd, chance, script + branches)

    order = [i for i, v in enumerate(values) if 0 < v < 1]
    yield from go(list(values), order, Fraction(1), ())


PROBABILITIES = [
    EXAMPLE,
    [Fraction(2, 5)] * 5,
    [Fraction(1, 2), Fraction(1, 2)],
    [Fraction(1), Fraction(1, 3), Fraction(0), Fraction(2, 3)],
    [Fraction(3, 8)] * 8,
    [Fraction(7, 8), Fraction(1, 8), Fraction(5, 8), Fraction(3, 8), Fraction(9, 10), Fraction(1, 10)],
    [Fraction(6, 7)] * 7,
]


@pytest.mark.parametrize("probability", PROBABILITIES)
def test_every_branch_of_the_fast_form_ends_where_exact_arithmetic_says(probability):
    numbers = np.array([float(p) for p in probability])
    for chance, script, drawn in sweeps(probability):
        if chance == 0:
            continue
        mask = dependent_rounding(numbers, Scripted(script), shuffle=False)
        assert frozenset(np.flatnonzero(mask).tolist()) == drawn


@pytest.mark.parametrize("probability", PROBABILITIES)
def test_exact_enumeration_gives_exactly_the_marginals(probability):
    tree = list(sweeps(probability))
    assert sum(chance for chance, _, _ in tree) == 1
    for link, expected in enumerate(probability):
        assert sum(chance for chance, _, drawn in tree if link in drawn) == expected
    assert {len(drawn) for chance, _, drawn in tree if chance} == {sum(probability)}


def test_the_sequential_rule_has_its_known_exact_law():
    sets = {
        (0, 2): (3, 10), (1, 2): (1, 5), (0, 3): (1, 10), (0, 4): (1, 10),
        (2, 3): (1, 12), (2, 4): (1, 12), (1, 3): (1, 15), (1, 4): (1, 15),
    }  # fmt: skip
    assert law(EXAMPLE, next_in_order) == {frozenset(links): Fraction(*p) for links, p in sets.items()}


def test_the_sequential_form_draws_with_that_law():
    exact = law(EXAMPLE, next_in_order)
    rng, repeats = stream(1, "sequential"), 6_000
    numbers = np.array([float(p) for p in EXAMPLE])
    seen = {}
    for _ in range(repeats):
        links = frozenset(np.flatnonzero(sequential_rounding(numbers, rng)).tolist())
        seen[links] = seen.get(links, 0) + 1
    assert set(seen) == set(exact)
    for links, p in exact.items():
        assert abs(seen[links] / repeats - p) < 4 * np.sqrt(float(p * (1 - p)) / repeats)


def test_the_reversed_rule_would_be_noticed():
    """The nearest wrong variant, found in public code: the branch probabilities swapped."""

    def reversed_marginals(probability):
        found = [Fraction(0)] * len(probability)

        def go(values, chance):
            pair = next_in_order(values)
            if pair is None:
                for i, v in enumerate(values):
                    found[i] += chance * v
                return
            i, j = pair
            (p, up), (q, down) = settle(values[i], values[j])
            for weight, (first, second) in ((q, up), (p, down)):
                after = list(values)
                after[i], after[j] = first, second
                go(after, chance * weight)

        go(list(probability), Fraction(1))
        return found

    assert reversed_marginals(EXAMPLE) == [
        Fraction(7, 45),
        Fraction(7, 30),
        Fraction(25, 36),
        Fraction(1, 6),
        Fraction(3, 4),
    ]
    assert reversed_marginals(EXAMPLE) != EXAMPLE


@given(st.integers(1, 60), st.floats(0.1, 30), st.integers(0, 2**32), st.data())
def test_a_draw_has_exactly_the_budgeted_size_and_keeps_the_sure_ones(n, spread, seed, data):
    budget = data.draw(st.integers(0, n))
    rng = np.random.default_rng(seed)
    p = cap_to_budget(rng.normal(0, spread, n), budget)
    before = p.copy()
    drawn = dependent_rounding(p, rng)
    assert drawn.sum() == budget
    assert is_valid_draw(drawn, p)
    np.testing.assert_array_equal(p, before)


def test_probabilities_may_be_read_only():
    p = np.full(10, 0.3)
    p.setflags(write=False)
    assert dependent_rounding(p, stream(0, "read-only")).sum() == 3


@pytest.mark.parametrize("n", [20, 190])
def test_marginals_hold_within_four_sigma(n):
    rng, repeats = stream(0, "marginals", n), 6_000
    p = cap_to_budget(rng.normal(0, 1.5, n), round(0.3 * n))
    frequency = sum(dependent_rounding(p, rng) for _ in range(repeats)) / repeats
    tolerance = 4 * np.sqrt(p * (1 - p) / repeats) + 1e-12
    assert (np.abs(frequency - p) <= tolerance).all()


def test_pairs_are_never_positively_correlated():
    rng, repeats = stream(0, "pairs"), 6_000
    p = np.array([float(x) for x in EXAMPLE])
    draws = np.array([dependent_rounding(p, rng) for _ in range(repeats)], dtype=float)
    together, product = draws.T @ draws / repeats, np.outer(p, p)
    off = ~np.eye(len(p), dtype=bool)
    assert (together[off] <= product[off] + 4 * np.sqrt(product[off] / repeats)).all()


def test_equal_probabilities_make_every_set_equally_likely():
    rng, repeats, p = stream(0, "sets"), 6_000, np.full(5, 0.4)
    sets = list(itertools.combinations(range(5), 2))
    seen = dict.fromkeys(sets, 0)
    for _ in range(repeats):
        seen[tuple(np.flatnonzero(dependent_rounding(p, rng)).tolist())] += 1
    for count in seen.values():
        assert abs(count / repeats - 0.1) < 4 * np.sqrt(0.1 * 0.9 / repeats)


def test_a_large_fleet_draws_exactly_its_budget():
    rng = stream(0, "large")
    p = cap_to_budget(rng.normal(0, 1, 200 * 199), 11_940)
    assert dependent_rounding(p, rng).sum() == 11_940


@pytest.mark.parametrize("bad", [[-0.1, 1.1], [np.nan, 0.5], [2.0]])
def test_what_is_no_probability_is_refused(bad):
    with pytest.raises(ValueError, match="probabilities"):
        dependent_rounding(np.array(bad), stream(0, "bad"))
