"""docs/theory.md: regret stays under the derived bound, not under the printed one, and the figures are real."""

import functools
import importlib.util
import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hatdfed.core.coordinator import links_in_budget
from hatdfed.core.drawing.budgeted import cap_to_budget
from hatdfed.core.links import all_links
from hatdfed.core.policies.baselines import RandomLinks
from hatdfed.core.policies.link_bandit import LinkBandit, reward_estimate, theorem_learning_rate
from hatdfed.core.regret import best_learning_rate, best_links_utility, printed_bound, standard_bound
from hatdfed.randomness import stream
from hatdfed.testing import policy_context

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/theory.md").read_text(encoding="utf-8")
RECORDED = json.loads((ROOT / "benchmarks/results/regret.json").read_text(encoding="utf-8"))

_spec = importlib.util.spec_from_file_location("benchmark_regret", ROOT / "benchmarks/regret.py")
bench = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(bench)

SEEDS = range(100, 104)  # none of the benchmark's own
measure = functools.cache(functools.partial(bench.measure, seeds=SEEDS))

every_sequence = pytest.mark.parametrize("name", bench.SEQUENCES)
both_rates = pytest.mark.parametrize("rate", bench.RATES)
two_sizes = pytest.mark.parametrize("servers", [5, 10])


def sizes(servers):
    return servers * (servers - 1), links_in_budget(bench.LINK_SHARE, servers)


@every_sequence
@both_rates
@two_sizes
def test_mean_regret_stays_under_the_standard_bound(name, servers, rate):
    links, drawn = sizes(servers)
    bound = standard_bound(links, drawn, bench.ROUNDS, bench.RATES[rate](servers, drawn, bench.ROUNDS))
    fixed, _ = measure(name, servers, rate)
    assert fixed.mean + 4 * fixed.error < bound


@every_sequence
@both_rates
@two_sizes
def test_regret_against_each_rounds_best_is_never_negative_and_never_the_smaller_one(name, servers, rate):
    fixed, each = measure(name, servers, rate)
    assert each.mean >= -1e-9
    assert each.mean >= fixed.mean - 1e-9


@given(st.integers(2, 5), st.integers(0, 2**32), st.data())
def test_no_probabilities_earn_more_than_the_best_links_of_the_round(servers, seed, data):
    links = servers * (servers - 1)
    budget = data.draw(st.integers(1, links))
    rng = np.random.default_rng(seed)
    utility = rng.random(links)
    p = cap_to_budget(rng.normal(0, 4, links), budget)
    assert best_links_utility(utility, budget) - p @ utility >= -1e-9


@two_sizes
def test_the_printed_bound_is_exceeded_by_the_counterexample(servers):
    fixed, _ = measure("fixed best", servers, "theorem")
    assert fixed.mean - 4 * fixed.error > printed_bound(servers, bench.ROUNDS)


@both_rates
@two_sizes
def test_the_counterexample_costs_at_least_what_is_proved(servers, rate):
    links, drawn = sizes(servers)
    least = bench.least_regret_on_fixed_best(links, drawn, bench.ROUNDS, bench.RATES[rate](servers, drawn, 200))
    fixed, _ = measure("fixed best", servers, rate)
    assert fixed.mean + 4 * fixed.error > least


@pytest.mark.parametrize(("servers", "drawn"), [(5, 10), (10, 27), (20, 114)])
def test_where_the_proof_alone_contradicts_the_printed_bound(servers, drawn):
    rate = theorem_learning_rate(servers, 200)
    least = bench.least_regret_on_fixed_best(servers * (servers - 1), drawn, 200, rate)
    assert least > printed_bound(servers, 200)


@given(st.integers(2, 60), st.integers(1, 10**6), st.floats(1e-6, 1.0), st.data())
def test_the_printed_bound_holds_for_the_regret_of_a_single_drawn_link(servers, rounds, rate, data):
    links = servers * (servers - 1)
    drawn = data.draw(st.integers(1, links))
    printed = rate * rounds * servers**2 + 2 * math.log(servers) / rate
    assert standard_bound(links, drawn, rounds, rate) / drawn <= printed * (1 + 1e-12)


@two_sizes
def test_when_chance_picks_each_rounds_best_every_policy_misses_the_same(servers):
    links, drawn = sizes(servers)
    _, each = measure("no fixed best", servers, "theorem")
    assert abs(each.mean - bench.ROUNDS * drawn * (1 - drawn / links)) < 5 * each.error


@two_sizes
def test_following_the_leader_is_fooled_and_the_bandit_is_not(servers):
    _, drawn = sizes(servers)
    utilities = bench.utilities_of("against the leader", servers, drawn, bench.ROUNDS, 0)
    leader = bench.follow_the_leader(utilities, drawn)
    fixed, _ = measure("against the leader", servers, "best")
    assert leader > 0.98 * drawn * bench.ROUNDS / 2
    assert fixed.mean < leader / 4


def test_sequences_are_utilities_and_the_sets_are_disjoint():
    for name in bench.SEQUENCES:
        utilities = bench.utilities_of(name, 5, 6, 40, 0)
        assert utilities.shape == (40, 20)
        assert utilities.min() >= 0
        assert utilities.max() <= 1
    halves = bench.utilities_of("switch", 5, 6, 40, 0)
    assert ((halves[0] == 1) & (halves[-1] == 1)).sum() == 0
    assert (halves[0] == 1).sum() == (halves[-1] == 1).sum() == 6


def test_probabilities_from_after_rounding_cost_clearly_more():
    """If somebody makes the default estimate divide by anything else, the two policies come out alike."""
    right, _ = bench.measure("Bernoulli", 5, "best", SEEDS, 400)
    wrong, _ = bench.measure("Bernoulli", 5, "best", SEEDS, 400, propensity="after-rounding")
    assert wrong.mean > 1.5 * right.mean
    assert wrong.mean - right.mean > 6 * math.hypot(right.error, wrong.error)


# η = 0 is rnd


@pytest.mark.parametrize("policy", [LinkBandit(learning_rate=0.0), RandomLinks()], ids=["bandit", "random-links"])
def test_without_learning_every_set_is_equally_likely(policy):
    rng, repeats, context, state = stream(0, "sets"), 6_000, policy_context(3, budget=2), policy.init(3)
    seen = dict.fromkeys(itertools.combinations(range(6), 2), 0)
    for _ in range(repeats):
        draw = policy.propose(state, context, rng)
        seen[tuple(draw.places.tolist())] += 1
    np.testing.assert_allclose(draw.propensity, 1 / 3)
    sigma = math.sqrt(1 / 15 * 14 / 15 / repeats)
    assert len(seen) == 15
    assert max(abs(count / repeats - 1 / 15) for count in seen.values()) < 4 * sigma


def test_without_learning_the_weights_never_move():
    policy, utilities = LinkBandit(learning_rate=0.0), bench.utilities_of("fixed best", 5, 6, 50, 0)
    regret = bench.play(policy, utilities, 5, 6, 0)
    assert regret.best_fixed == pytest.approx(50 * 6 * (1 - 6 / 20))


# P2, and the projection behind the draw


@pytest.mark.parametrize(("n", "budget"), [(n, b) for n in (1, 2, 6, 9) for b in range(n + 1)])
def test_the_best_links_are_those_that_trying_every_set_finds(n, budget):
    rng = stream(n, "brute force", budget)
    for utility in (rng.random(n), rng.integers(0, 3, n) / 2):  # with and without ties
        best = max(sum(utility[list(chosen)]) for chosen in itertools.combinations(range(n), budget))
        assert best_links_utility(utility, budget) == pytest.approx(best)


@given(st.integers(2, 30), st.floats(0.1, 5), st.integers(0, 2**32), st.data())
def test_capping_is_the_entropic_projection(n, spread, seed, data):
    budget = data.draw(st.integers(1, n - 1))
    rng = np.random.default_rng(seed)
    log_weights = rng.normal(0, spread, n)

    def objective(p):
        return float((p * np.log(np.where(p > 0, p, 1)) - p * log_weights).sum())

    p = cap_to_budget(log_weights, budget)
    factor = np.log(p) - log_weights  # ln c below the cap, at most ln c at it
    below = p < 1 - 1e-12
    if below.any():
        np.testing.assert_allclose(factor[below], factor[below][0], atol=1e-9)
        assert (factor[~below] <= factor[below][0] + 1e-9).all()
    for _ in range(20):  # no other point of the polytope is better
        other = cap_to_budget(rng.normal(0, spread, n), budget)
        assert objective(p) <= objective(0.9 * p + 0.1 * other) + 1e-9


# What Eq. (11) can teach


def test_when_utility_depends_on_the_draw_the_estimate_has_the_mean_over_draws_that_had_the_link():
    """All 15 sets of 2 of 6 links, exactly: the gain of a receiver is the sum of what its drawn senders bring."""
    brings, possible = np.array([0.1, 0.3, 0.4]), all_links(3)
    p = np.where(possible, 1 / 3, 0.0)
    estimates, utilities, drawn = [], [], []
    for chosen in itertools.combinations(np.argwhere(possible).tolist(), 2):
        links = np.zeros((3, 3), dtype=bool)
        links[tuple(np.transpose(chosen))] = True
        utility = np.where(possible, (links @ brings)[:, None], 0.0)
        assert all(len(set(row[mask])) == 1 for row, mask in zip(utility, possible, strict=True))  # same credit
        estimates.append(reward_estimate(utility, links, p))
        utilities.append(utility)
        drawn.append(links)
    credit = np.mean(estimates, axis=0)
    given_drawn = np.sum(np.multiply(utilities, drawn), axis=0)[possible] / np.sum(drawn, axis=0)[possible]
    np.testing.assert_allclose(credit[possible], given_drawn)
    for i, j, other in itertools.permutations(range(3)):
        assert credit[i, j] - credit[i, other] == pytest.approx((brings[j] - brings[other]) * (1 - 1 / 5))


# The formulas


@given(st.integers(2, 400), st.integers(1, 10**6), st.data())
def test_the_best_rate_makes_the_standard_bound_least(links, rounds, data):
    drawn = data.draw(st.integers(1, links - 1))
    best = best_learning_rate(links, drawn, rounds)
    least = standard_bound(links, drawn, rounds, best)
    assert 0 < best < 1
    assert least == pytest.approx(math.sqrt(2 * links * drawn * rounds * math.log(links / drawn)))
    for factor in (0.5, 0.99, 1.01, 2.0):
        assert standard_bound(links, drawn, rounds, best * factor) >= least


def test_bounds_at_the_edges():
    assert best_learning_rate(6, 6, 10) == 0
    assert standard_bound(6, 6, 10, 0.0) == 0
    assert standard_bound(6, 2, 10, 0.0) == math.inf
    assert printed_bound(5, 200) == pytest.approx(269.1, abs=0.05)
    for wrong in ((6, 0, 10), (6, 7, 10), (6, 2, 0)):
        with pytest.raises(ValueError, match="links"):
            best_learning_rate(*wrong)
    with pytest.raises(ValueError, match="negative"):
        standard_bound(6, 2, 10, -0.1)
    with pytest.raises(ValueError, match="servers"):
        printed_bound(0, 10)


# The page


def table(headers):
    """The rows of the page's table whose first headers are these, as lists of cells."""
    lines = PAGE.splitlines()
    (start,) = [i for i, line in enumerate(lines) if line.startswith(f"| {headers} |")]
    rows = itertools.takewhile(lambda line: line.startswith("|"), lines[start + 2 :])
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def whole(value):
    return f"{value:,.0f}".replace("-", "−")


def recorded(name, servers, rate):
    (row,) = [
        row for row in RECORDED["rows"] if (row["sequence"], row["servers"], row["rate"]) == (name, servers, rate)
    ]
    return row


def test_the_recorded_bounds_are_those_of_the_code():
    assert (RECORDED["rounds"], RECORDED["link_share"]) == (bench.ROUNDS, bench.LINK_SHARE)
    assert len(RECORDED["rows"]) == len(bench.SEQUENCES) * len(bench.SERVERS) * len(bench.RATES)
    for row in RECORDED["rows"]:
        servers, rate = row["servers"], row["learning_rate"]
        assert (row["links"], row["drawn"]) == sizes(servers)
        assert rate == pytest.approx(bench.RATES[row["rate"]](servers, row["drawn"], bench.ROUNDS))
        assert row["standard_bound"] == pytest.approx(standard_bound(row["links"], row["drawn"], bench.ROUNDS, rate))
        assert row["printed_bound"] == pytest.approx(printed_bound(servers, bench.ROUNDS))
        assert row["regret"] + 3 * row["error"] < row["standard_bound"]


@every_sequence
@both_rates
@two_sizes
def test_the_recorded_regret_is_what_other_seeds_give(name, servers, rate):
    row, (fixed, each) = recorded(name, servers, rate), measure(name, servers, rate)
    assert abs(row["regret"] - fixed.mean) < 6 * math.hypot(row["error"], fixed.error)
    assert abs(row["regret_each_round"] - each.mean) < 6 * math.hypot(row["error_each_round"], each.error)


def test_the_page_shows_the_recorded_regrets():
    rows = table("sequence")
    assert [cells[0] for cells in rows] == [*bench.SEQUENCES, "*standard bound*"]
    columns = [(servers, rate) for rate in bench.RATES for servers in bench.SERVERS]
    for name, *cells in rows[:-1]:
        assert cells == [whole(recorded(name, *column)["regret"]) for column in columns]
    assert rows[-1][1:] == [whole(recorded("fixed best", *column)["standard_bound"]) for column in columns]


def test_the_page_shows_the_recorded_counterexample():
    printed, each = table("N | B of n"), table("N | exact, K·B·(1 − B/n)")
    assert [cells[0] for cells in printed] == [cells[0] for cells in each] == [str(n) for n in bench.SERVERS]
    for cells in printed:
        row = recorded("fixed best", int(cells[0]), "theorem")
        assert cells[1:] == [
            f"{row['drawn']} of {row['links']}",
            f"{row['learning_rate']:.4f}",
            f"{math.floor(row['proved_at_least']):,}",
            f"{whole(row['regret'])} ± {whole(row['error'])}",
            whole(row["printed_bound"]),
            whole(row["standard_bound"]),
        ]
    for cells in each:
        row = recorded("no fixed best", int(cells[0]), "theorem")
        exact = bench.ROUNDS * row["drawn"] * (1 - row["drawn"] / row["links"])
        assert cells[1:] == [whole(exact), whole(row["regret_each_round"]), whole(row["printed_bound"])]


def test_the_page_shows_the_recorded_estimators():
    rows = {cells[0]: cells[1:] for cells in table("K")}
    assert rows == {
        whole(row["rounds"]): [whole(row["before-rounding"]), whole(row["after-rounding"])]
        for row in RECORDED["estimators"]
    }


def test_figures_in_the_pages_sentences_are_recorded():
    text = " ".join(PAGE.split())
    leader = recorded("against the leader", 5, "theorem")["follow_the_leader"]
    slow, fast = (recorded("fixed best", 5, rate)["regret"] for rate in bench.RATES)
    assert f"for N = 5 that rule has a regret of {whole(leader)} there" in text
    assert f"840 for N = 5 against {whole(slow)} and {whole(fast)}" in text
    short, long = (row["before-rounding"] for row in RECORDED["estimators"])
    assert f"misses {long / short:.1f} times as much in ten times the rounds" in text
    ratios = [recorded("switch", n, "best")["learning_rate"] / theorem_learning_rate(n, 200) for n in bench.SERVERS]
    assert "{:.1f}, {:.1f} and {:.1f} here".format(*ratios) in text
