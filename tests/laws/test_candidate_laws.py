"""Candidate-limited links: what must hold of the graph, of every draw on it, and of what is learned."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hatdfed.core.candidates import CandidateRule, regular_graph, swap_candidates
from hatdfed.core.coordinator import Coordinator, read_state
from hatdfed.core.energy.energy_model import draw_prices
from hatdfed.core.links import LinkTable, off_diagonal
from hatdfed.core.policies import POLICIES
from hatdfed.core.policies.base import PolicyContext
from hatdfed.core.policies.scheduled import Scheduled
from hatdfed.core.round import RoundReport, ServerReport
from hatdfed.core.utility import LinkUtility
from hatdfed.jsonable import to_jsonable
from hatdfed.randomness import stream

TAKERS = {
    "link-bandit": {},
    "random-links": {},
    "priced-links": {"thrift": 3.0},
    "balanced-links": {"thrift": 3.0, "degree": 2},
}
DRAWS = {"balanced-links": 500}  # those take longer, and have laws of their own

graphs = st.integers(2, 40).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n - 1), st.integers(0, 2**32)))


def is_regular(candidates):
    size, degree = candidates.shape
    ascending = (np.diff(candidates, axis=1) > 0).all()
    others = (candidates != np.arange(size)[:, None]).all()
    return ascending and others and (np.bincount(candidates.ravel(), minlength=size) == degree).all()


def coordinator(policy, size, rule, *, budget=None, seed=3, churn=0.0, every=1):
    prices = draw_prices(
        seed, size, num_devices=30, samples_per_device=2, bits_per_sample=512, model_bits=1e6,
        weak_joules_per_sample=0.5, strong_joules_per_sample=0.25, device_kbit_per_joule=1.0,
        link_kbit_per_joule=(20.0, 50.0), with_table=rule is None,
    )  # fmt: skip
    drawer = POLICIES[policy](**TAKERS[policy])
    drawer = Scheduled(drawer, every=every, finish_rounds=1) if every > 1 else drawer
    return Coordinator(
        drawer, LinkUtility(), prices, seed=seed, horizon=40, budget=budget or size, churn=churn, candidates=rule
    )


def reports(boss, plan, *, missing=()):
    """Everything drawn arrives but what the first server sent."""
    size = boss.prices.num_servers

    def one(i):
        if i in missing:
            return None
        senders = plan.draw.topology.senders(i)
        heard = np.array([i, *(sender for sender in senders if sender != 0)])
        energy = (
            boss.prices.upload(plan.t, i, 3 + i % 5, 6),
            boss.prices.training(plan.t, i, 6),
            *(boss.prices.link(plan.t, i, sender) for sender in senders),
        )
        accuracy = float(stream(9, "accuracy", plan.t, i).random())
        return ServerReport(accuracy, 6, heard, np.full(len(heard), 1 / len(heard)), energy)

    return RoundReport(tuple(one(i) for i in range(size)))


@given(graphs)
def test_everybody_considers_as_many_as_consider_them(graph):
    size, degree, seed = graph
    assert is_regular(regular_graph(size, degree, stream(seed, "graph")))


@given(graphs, st.integers(1, 40))
def test_a_swap_leaves_the_graph_regular_and_what_is_preferred_in_place(graph, offered):
    size, degree, seed = graph
    before = regular_graph(size, degree, stream(seed, "graph"))
    preference = stream(seed, "preference").random(before.shape)
    done = swap_candidates(before, preference.reshape(-1), min(offered, degree), stream(seed, "swap"))
    assert is_regular(done.candidates)
    kept = done.origin >= 0
    np.testing.assert_array_equal(done.candidates[kept], before[np.nonzero(kept)[0], done.origin[kept]])
    for row in range(size):
        stays = before[row, np.argsort(preference[row])[min(offered, degree) :]]
        assert set(stays) <= set(done.candidates[row, kept[row]])


def test_a_new_candidate_starts_from_the_mean_of_the_old_ones():
    before = regular_graph(50, 6, stream(0, "graph"))
    done = swap_candidates(before, np.zeros(before.size), 3, stream(0, "exchange"))
    known = stream(0, "known").normal(size=before.shape)
    carried = done.carry(known.reshape(-1)).reshape(before.shape)
    is_new = done.origin < 0
    assert 0.3 < is_new.mean() <= 0.5  # three of six are offered, and nearly all find somebody
    np.testing.assert_array_equal(carried[is_new], np.repeat(known.mean(axis=1), is_new.sum(axis=1)))
    assert sorted(carried[~is_new]) == sorted(known[np.nonzero(~is_new)[0], done.origin[~is_new]])


def test_without_a_preference_everybody_is_met_as_often():
    candidates, met = regular_graph(12, 4, stream(0, "graph")), np.zeros((12, 12))
    for t in range(2000):
        candidates = swap_candidates(candidates, np.zeros(candidates.size), 2, stream(t, "exchange")).candidates
        met += LinkTable.of_candidates(candidates).to_dense(np.ones(candidates.size))
    np.testing.assert_allclose(off_diagonal(met) / 2000, 4 / 11, atol=0.1)


def test_swaps_bring_cheap_links_together():
    size, rule = 60, CandidateRule(8)
    prices = stream(0, "prices").uniform(1, 3, (size, size))
    first = candidates = rule.first(0, size)
    for t in range(30):
        candidates = rule.swap(candidates, -LinkTable.of_candidates(candidates).from_dense(prices), 0, t).candidates
    before, after = (np.take_along_axis(prices, table, axis=1).mean() for table in (first, candidates))
    assert after < 0.85 * before


@pytest.mark.parametrize("policy", TAKERS)
@pytest.mark.parametrize("churn", [0.0, 0.3])
def test_only_candidates_are_drawn_and_exactly_the_budget(policy, churn):
    size, rule = 24, CandidateRule(6, refresh_every=2)
    boss = coordinator(policy, size, rule, churn=churn)
    state = boss.start(np.zeros(size))
    for _ in range(8):
        plan = boss.plan(state)
        draw = plan.draw
        assert is_regular(draw.links.senders)
        assert draw.propensity.shape == (size * 6,)
        assert not draw.propensity.flags.writeable
        np.testing.assert_array_equal(draw.links.pairs(draw.places), draw.topology.pairs)
        assert (draw.propensity[draw.places] > 0).all()
        assert draw.topology.num_links == round(draw.propensity.sum())
        assert abs(draw.propensity.sum() - draw.topology.num_links) < 1e-9
        if churn == 0:
            assert draw.topology.num_links == (2 * size if policy == "balanced-links" else size)
        state, _ = boss.learn(state, plan, reports(boss, plan))


@pytest.mark.parametrize("policy", TAKERS)
def test_links_are_drawn_as_often_as_their_probability_says(policy):
    size = 12
    boss = coordinator(policy, size, CandidateRule(5))
    drawer, links = boss.policy, LinkTable.of_candidates(boss.start(np.zeros(size)).candidates)
    prices, everybody, every = boss.prices.joules_of(links), np.ones(size, dtype=bool), np.ones(len(links), dtype=bool)
    context = PolicyContext(0, 40, 17, links, prices, everybody, every)
    state = drawer.init_for(links)
    if policy != "random-links":
        state = state._replace(log_weights=stream(1, "weights").normal(size=len(links)))
    count, draws = np.zeros(len(links)), DRAWS.get(policy, 2000)
    for t in range(draws):
        draw = drawer.propose(state, context, stream(5, "draw", t))
        count[draw.places] += 1
    deviation = np.sqrt(np.maximum(draw.propensity * (1 - draw.propensity) / draws, 1e-12))
    assert np.ptp(draw.propensity) > 0.1 or policy == "random-links"
    assert np.abs((count / draws - draw.propensity) / deviation).max() < 4.5


@pytest.mark.parametrize("policy", ["link-bandit", "random-links", "priced-links"])
@pytest.mark.parametrize("every", [1, 3])
def test_with_all_others_as_candidates_every_bit_is_as_without(policy, every):
    size = 9
    limited = coordinator(policy, size, CandidateRule(size - 1, refresh_every=2), every=every)
    plain = coordinator(policy, size, None, every=every)
    states = [boss.start(np.full(size, 0.4)) for boss in (limited, plain)]
    for t in range(9):
        plans = [boss.plan(state) for boss, state in zip((limited, plain), states, strict=True)]
        assert plans[0].draw.topology == plans[1].draw.topology
        np.testing.assert_array_equal(plans[0].draw.propensity, plans[1].draw.propensity)
        missing = (4,) if t == 5 else ()
        told = [reports(boss, plan, missing=missing) for boss, plan in zip((limited, plain), plans, strict=True)]
        learned = [boss.learn(*each) for boss, *each in zip((limited, plain), states, plans, told, strict=True)]
        states = [state for state, _ in learned]
        np.testing.assert_array_equal(learned[0][1].utility, learned[1][1].utility)
        np.testing.assert_allclose(learned[0][1].regret, learned[1][1].regret, rtol=1e-12, atol=1e-12)


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 2**32))
def test_a_round_after_json_is_the_same_round(seed):
    boss = coordinator("link-bandit", 10, CandidateRule(4, refresh_every=2), seed=seed)
    state = boss.start(np.zeros(10))
    for _ in range(3):
        plan = boss.plan(state)
        state, _ = boss.learn(state, plan, reports(boss, plan))
    again = read_state(json.loads(json.dumps(to_jsonable(state))), boss.start(np.zeros(10)))
    np.testing.assert_array_equal(again.candidates, state.candidates)
    assert boss.plan(again).draw.topology == boss.plan(state).draw.topology


def test_a_state_from_before_candidates_can_still_be_read():
    boss = coordinator("link-bandit", 5, None)
    state = boss.start(np.full(5, 0.25))
    old = {name: value for name, value in to_jsonable(state).items() if name != "candidates"}
    assert read_state(old, boss.start(np.zeros(5))).candidates is None
