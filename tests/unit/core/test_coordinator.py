import json
from dataclasses import replace

import numpy as np
import pytest

from hatdfed.core.candidates import CandidateRule
from hatdfed.core.coordinator import Coordinator, CoordinatorState, links_in_budget, read_state
from hatdfed.core.energy.energy_model import Cause, EnergyRow, draw_prices
from hatdfed.core.links import LinkTable
from hatdfed.core.policies import POLICIES
from hatdfed.core.policies.base import certain
from hatdfed.core.policies.scheduled import Scheduled
from hatdfed.core.regret import best_links_utility
from hatdfed.core.round import Presence, RoundReport, ServerReport
from hatdfed.core.utility import LinkUtility
from hatdfed.jsonable import to_jsonable
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
        senders = np.array([i, *plan.draw.topology.senders(i)])
        return ServerReport(accuracy[i], 30, senders, np.full(len(senders), np.nan), energy)

    return RoundReport(tuple(one(i) for i in range(N)))


def test_the_first_draw_is_uniform():
    plan = coordinator().plan(coordinator().start(np.zeros(N)))
    np.testing.assert_allclose(plan.draw.propensity, 0.3)
    assert plan.draw.topology.num_links == 6


def test_a_plan_can_be_made_again_from_its_state_after_json():
    boss = coordinator()
    state = boss.start(np.full(N, 0.1))
    for t in range(5):
        plan = boss.plan(state)
        state, _ = boss.learn(state, plan, report(plan, np.full(N, 0.1) + 0.01 * t * np.arange(N)))
    again = read_state(json.loads(json.dumps(to_jsonable(state))), boss.start(np.zeros(N)))
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
        presence = Presence(np.arange(N) < here, np.ones(N * (N - 1), dtype=bool))
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
    facts = boss.facts(state, plan, RoundReport((*whole.servers[:-1], None)), boss.context(state))
    assert facts.gain[-1] == pytest.approx(facts.gain[:-1].mean())
    assert facts.upload_joules[-1] == pytest.approx(facts.upload_joules[:-1].mean())
    assert facts.gain.min() == pytest.approx(0.1)


def test_the_best_links_are_simply_the_largest():
    utility = np.array([0.9, 0.1, 0.5, 0.2, 0.8, 0.3])
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
    receiver, sender = plan.draw.topology.pairs[0]
    one = whole.servers[receiver]
    came = one.senders != sender
    lost = one._replace(senders=one.senders[came], importance=one.importance[came])
    servers = tuple(lost if i == receiver else server for i, server in enumerate(whole.servers))
    _, record = boss.learn(state, plan, RoundReport(servers))
    assert record.utility[plan.draw.places[0]] == 0
    assert np.count_nonzero(record.utility[plan.draw.drawn]) > 1


@pytest.mark.parametrize(
    ("share", "servers", "links"), [(0.3, 5, 6), (0.4, 5, 8), (0.01, 3, 1), (1.0, 4, 12), (0.37, 5, 7)]
)
def test_a_budget_is_the_nearest_whole_number_and_at_least_one(share, servers, links):
    assert links_in_budget(share, servers) == links


@pytest.mark.parametrize("links", [1, 360, 60_000])
@pytest.mark.parametrize("case", ["spread", "ties", "a few rows", "hidden from the sample"])
def test_the_best_links_of_a_large_fleet_are_the_largest_too(case, links):
    utility = stream(0, "large").random(90_000)
    if case == "ties":
        utility = np.round(utility, 1)
    if case == "a few rows":
        utility[3_000:] /= 100
    if case == "hidden from the sample":
        utility[::2] /= 100
    assert best_links_utility(utility, links) == pytest.approx(np.sort(utility)[-links:].sum(), rel=1e-12)


def test_importance_matters_for_the_utility_that_reads_it_only():
    boss = coordinator()
    state = boss.start(np.zeros(N))
    plan = boss.plan(state)
    one = report(plan, np.linspace(0.1, 0.4, N))
    half = RoundReport(tuple(s._replace(importance=np.full(len(s.senders), 0.5)) for s in one.servers))
    for gain, matters in (("receiver", False), ("released", True)):
        judge = replace(boss, utility=LinkUtility(gain=gain))
        utilities = [judge.learn(state, plan, reports)[1].utility for reports in (one, half)]
        assert np.array_equal(*utilities) != matters


@pytest.mark.parametrize("size", [3, 7])
def test_a_draw_for_another_number_of_servers_is_named(size):
    class Mistaken(type(POLICIES["random-links"]())):
        def propose(self, state, context, rng):
            links = LinkTable.all_of(size)
            return certain(links, np.ones(len(links), dtype=bool))

    boss = replace(coordinator(), policy=Mistaken())
    with pytest.raises(ValueError, match=f"a draw for {size} servers, but there are {N}"):
        boss.plan(boss.start(np.zeros(N)))


def played(boss, rounds):
    state = boss.start(np.full(N, 0.1))
    for t in range(rounds):
        plan = boss.plan(state)
        state, _ = boss.learn(state, plan, report(plan, np.full(N, 0.1) + 0.01 * t * np.arange(N)))
    return state


def as_version_0_1_wrote_it(state: CoordinatorState, *, every):
    """Matrices in place of columns, and the sums behind the regret beside the other fields."""

    def table(column):
        return column.reshape(N, every) if every < N - 1 else LinkTable.all_of(N).to_dense(column, 99.0)

    policy = type(state.policy)(*(table(column) for column in state.policy))
    sums = {"utility_drawn": state.regret.drawn, "utility_best": state.regret.best_each_round}
    fields = {"t": state.t, "policy": policy, "accuracy": state.accuracy, "candidates": state.candidates} | sums
    fields |= {"utility_sum": table(state.regret.utility), "links": state.regret.num_links}
    return json.loads(json.dumps({name: to_jsonable(value) for name, value in fields.items()}))


@pytest.mark.parametrize("policy", ["link-bandit", "upper-confidence", "hindsight-oracle"])
@pytest.mark.parametrize("every", [2, N - 1])
def test_a_state_of_version_0_1_is_read_as_columns(policy, every):
    boss = coordinator(policy)
    if every < N - 1:
        boss = replace(coordinator(), candidates=CandidateRule(every))
    state = played(boss, 4)
    again = read_state(as_version_0_1_wrote_it(state, every=every), boss.start(np.zeros(N)))
    assert json.dumps(to_jsonable(again)) == json.dumps(to_jsonable(state))
    assert boss.plan(again).draw.topology == boss.plan(state).draw.topology


@pytest.mark.parametrize(("here", "budget"), [(5, 6), (3, 6), (2, 2), (1, 0)])
def test_no_policy_is_asked_for_more_links_than_are_possible(here, budget):
    boss = coordinator()
    presence = Presence(np.arange(N) < here, np.ones(N * (N - 1), dtype=bool))
    assert boss.context(boss.start(np.zeros(N)), presence).budget == budget
    assert boss.plan(boss.start(np.zeros(N)), presence).draw.topology.num_links == budget


def test_a_link_costs_what_the_codecs_message_costs():
    """A quarter of the bits is a quarter of the joules, for the utility as for the ledger."""
    quarter = replace(coordinator(), message_share=0.25)
    small = replace(coordinator(), prices=replace(coordinator().prices, model_bits=0.25e6))
    utilities = []
    for boss in (coordinator(), quarter, small):
        state = boss.start(np.zeros(N))
        plan = boss.plan(state)
        utilities.append(boss.learn(state, plan, report(plan, np.linspace(0.1, 0.4, N)))[1].utility)
    whole, shared, priced = utilities
    np.testing.assert_allclose(shared, priced, rtol=1e-12)
    assert np.abs(shared - whole).max() > 0.01
