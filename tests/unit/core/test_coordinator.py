import json
from dataclasses import replace

import numpy as np
import pytest

from hatdfed.core.availability import Presence
from hatdfed.core.coordinator import Coordinator, best_links_utility, links_in_budget
from hatdfed.core.energy.ledger import Cause, EnergyRow
from hatdfed.core.energy.prices import draw_prices
from hatdfed.core.links import all_links
from hatdfed.core.policies import POLICIES
from hatdfed.core.policies.base import certain
from hatdfed.core.policies.scheduled import Scheduled
from hatdfed.core.round import RoundReport, ServerReport
from hatdfed.core.utility import LinkUtility
from hatdfed.jsonable import from_jsonable, to_jsonable
from hatdfed.randomness import stream

N = 5


def coordinator(policy="link-bandit", **settings):
    prices = draw_prices(
        0, N, num_devices=30, samples_per_device=2, bits_per_sample=512, model_bits=1e6, weak_joules_per_sample=0.5,
        strong_joules_per_sample=0.25, device_kbit_per_joule=1.0, link_kbit_per_joule=(20.0, 50.0),
    )  # fmt: skip
    return Coordinator(POLICIES[policy](**settings), LinkUtility(), prices, seed=1, horizon=50, budget=6)


def report(plan, accuracy):
    def one(i):
        energy = (
            EnergyRow(plan.t, Cause.UPLOAD, None, i, 10.0, 5.0 + i),
            EnergyRow(plan.t, Cause.TRAINING, i, i, 0, 3.0),
        )
        return ServerReport(accuracy[i], 30, np.full(N, np.nan), plan.draw.topology.links[i].copy(), energy)

    return RoundReport(tuple(one(i) for i in range(N)))


def test_the_first_draw_is_uniform():
    plan = coordinator().plan(coordinator().start(np.zeros(N)))
    np.testing.assert_allclose(plan.draw.propensity[~np.eye(N, dtype=bool)], 0.3)
    assert plan.draw.topology.num_links == 6


def test_a_plan_can_be_made_again_from_its_state_after_json():
    boss = coordinator()
    state = boss.start(np.full(N, 0.1))
    for t in range(5):
        plan = boss.plan(state)
        state, _ = boss.learn(state, plan, report(plan, np.full(N, 0.1) + 0.01 * t * np.arange(N)))
    again = from_jsonable(json.loads(json.dumps(to_jsonable(state))), boss.start(np.zeros(N)))
    assert again.t == 5
    np.testing.assert_array_equal(again.policy.log_weights, state.policy.log_weights)
    assert boss.plan(again).draw.topology == boss.plan(state).draw.topology


def test_learning_leaves_the_old_state_alone():
    boss = coordinator()
    state = boss.start(np.zeros(N))
    before = to_jsonable(state)
    plan = boss.plan(state)
    boss.learn(state, plan, report(plan, np.linspace(0, 0.4, N)))
    assert to_jsonable(state) == before


def test_regret_is_zero_for_all_links_and_grows_for_random_ones():
    def play(boss, rounds=10):
        state = boss.start(np.zeros(N))
        for _ in range(rounds):
            plan = boss.plan(state)
            state, record = boss.learn(state, plan, report(plan, np.linspace(0, 0.4, N)))
        return record.regret

    assert play(coordinator("all-links")).best_fixed == pytest.approx(0, abs=1e-9)
    random = play(coordinator("random-links"))
    assert 0 < random.best_fixed <= random.best_each_round + 1e-9


def regrets(boss, rounds=12):
    state, found = boss.start(np.zeros(N)), []
    for _ in range(rounds):
        plan = boss.plan(state)
        state, record = boss.learn(state, plan, report(plan, np.linspace(0, 0.4, N)))
        found.append(record.regret)
    return found


def test_rounds_without_a_choice_add_no_regret():
    """Silent rounds and rounds with every link: nothing better could have been drawn."""
    boss = coordinator("random-links")
    thinned = regrets(replace(boss, policy=Scheduled(boss.policy, every=3, finish_rounds=2), horizon=12))
    assert thinned[0] == thinned[1] == (0.0, 0.0)
    assert thinned[2].best_fixed > 0
    assert thinned[3] == thinned[4] == thinned[2]
    assert thinned[-1] == thinned[-2] == thinned[-3]
    assert all(each.best_fixed <= each.best_each_round + 1e-9 for each in thinned)


def test_sets_of_varying_size_have_no_best_one():
    boss, found = coordinator("balanced-links", learning_rate=0.0), []
    state = boss.start(np.zeros(N))
    for here in (N, N, N - 1, N):  # one link for each
        presence = Presence(np.arange(N) < here, all_links(N))
        plan = boss.plan(state, presence)
        state, record = boss.learn(state, plan, report(plan, np.linspace(0, 0.4, N)))
        found.append(record.regret)
    assert [bool(np.isnan(each.best_fixed)) for each in found] == [False, False, True, True]
    assert all(np.isfinite(each.best_each_round) for each in found)


def test_a_server_without_a_report_sets_no_end_of_anybodys_scale():
    boss = coordinator()
    state = boss.start(np.full(N, 0.5))
    plan = boss.plan(state)
    whole = report(plan, np.array([0.6, 0.7, 0.8, 0.9, 0.75]))  # every gain is above 0, every cost too
    facts = boss._facts(state, plan, RoundReport((*whole.servers[:-1], None)), boss._context(0, None, None))
    assert facts.gain[-1] == pytest.approx(facts.gain[:-1].mean())
    assert facts.upload_joules[-1] == pytest.approx(facts.upload_joules[:-1].mean())
    assert facts.gain.min() == pytest.approx(0.1)


def test_the_best_links_are_simply_the_largest():
    utility = np.array([[0.0, 0.9, 0.1], [0.5, 0.0, 0.2], [0.8, 0.3, 0.0]])
    assert best_links_utility(utility, 2) == pytest.approx(1.7)
    assert best_links_utility(utility, 0) == 0


def test_accuracy_of_a_silent_server_is_the_last_known():
    boss = coordinator()
    state = boss.start(np.full(N, 0.2))
    plan = boss.plan(state)
    full = report(plan, np.full(N, 0.5))
    state, _ = boss.learn(state, plan, RoundReport((None, *full.servers[1:])))
    np.testing.assert_allclose(state.accuracy, [0.2, 0.5, 0.5, 0.5, 0.5])


def test_a_link_that_delivered_nothing_was_worth_nothing():
    boss = coordinator()
    state = boss.start(np.zeros(N))
    plan = boss.plan(state)
    whole = report(plan, np.linspace(0.1, 0.4, N))
    receiver, sender = np.argwhere(plan.draw.topology.links)[0]
    whole.servers[receiver].delivered[sender] = False
    _, record = boss.learn(state, plan, whole)
    assert record.utility[receiver, sender] == 0
    assert np.count_nonzero(record.utility[plan.draw.topology.links]) > 1


@pytest.mark.parametrize(
    ("share", "servers", "links"), [(0.3, 5, 6), (0.4, 5, 8), (0.01, 3, 1), (1.0, 4, 12), (0.37, 5, 7)]
)
def test_a_budget_is_the_nearest_whole_number_and_at_least_one(share, servers, links):
    assert links_in_budget(share, servers) == links


@pytest.mark.parametrize("links", [1, 360, 60_000])
@pytest.mark.parametrize("case", ["spread", "ties", "a few rows", "hidden from the sample"])
def test_the_best_links_of_a_large_fleet_are_the_largest_too(case, links):
    utility = stream(0, "large").random((300, 300))
    if case == "ties":
        utility = np.round(utility, 1)
    if case == "a few rows":
        utility[10:] /= 100
    if case == "hidden from the sample":
        utility.reshape(-1)[::2] /= 100
    assert best_links_utility(utility, links) == pytest.approx(np.sort(utility.ravel())[-links:].sum(), rel=1e-12)


def test_importance_is_gathered_for_the_utility_that_reads_it_only():
    boss = coordinator()
    state = boss.start(np.zeros(N))
    plan = boss.plan(state)
    one = report(plan, np.linspace(0.1, 0.4, N))
    half = RoundReport(tuple(server._replace(importance=np.full(N, 0.5)) for server in one.servers))
    for gain, matters in (("receiver", False), ("released", True)):
        judge = replace(boss, utility=LinkUtility(gain=gain))
        utilities = [judge.learn(state, plan, reports)[1].utility for reports in (one, half)]
        assert np.array_equal(*utilities) != matters


@pytest.mark.parametrize("size", [3, 7])
def test_a_draw_for_another_number_of_servers_is_named(size):
    class Mistaken(type(POLICIES["random-links"]())):
        def propose(self, state, context, rng):
            return certain(np.triu(np.ones((size, size), dtype=bool), 1))

    boss = replace(coordinator(), policy=Mistaken())
    with pytest.raises(ValueError, match=f"{size}x{size} draw for {N} servers"):
        boss.plan(boss.start(np.zeros(N)))
