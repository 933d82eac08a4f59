"""Schedules: silence, finish, and a budget of joules that no draw can break."""

import math

import numpy as np
import pytest

from hatdfed.core.energy.energy_model import Cause, EnergyRow
from hatdfed.core.policies import POLICIES
from hatdfed.core.policies.scheduled import Scheduled
from hatdfed.core.round import RoundReport
from hatdfed.errors import ConfigError
from hatdfed.randomness import stream
from hatdfed.testing import TopologyPolicyLaws, feedback_for, policy_context

N, K = 5, 20


def spending(draw, context, share=1.0, attempts=1):
    """The ledger rows of a draw in which every link took so many attempts."""
    return tuple(
        EnergyRow(context.t, Cause.LINK, j, i, 0.0, share * float(price))
        for (i, j), price in zip(draw.topology.pairs.tolist(), context.prices[draw.drawn], strict=True)
        for _ in range(attempts)
    )


def play(policy, *, rounds=K, share=1.0, attempts=1, lost=()):
    """All draws of a run, and what they cost; reports of the servers in `lost` never come."""
    state, draws, spent = policy.init(N), [], 0.0
    for t in range(rounds):
        context = policy_context(N, t=t, horizon=K)
        draw = policy.propose(state, context, stream(3, "topology", t))
        rows = spending(draw, context, share, attempts)
        feedback = feedback_for(draw, stream(3, "feedback", t))
        told = [server._replace(energy=tuple(row for row in rows if row.sender == i))
                for i, server in enumerate(feedback.report.servers)]  # fmt: skip
        report = RoundReport(tuple(None if i in lost else each for i, each in enumerate(told)))
        state = policy.update(state, draw, feedback._replace(report=report), context)
        draws.append(draw)
        spent += math.fsum(row.joules for row in rows)
        assert state.spent == pytest.approx(spent) or lost
        assert state.spent >= spent - 1e-9
    return draws, spent


def bandit():
    return POLICIES["link-bandit"]()


def ring():
    return POLICIES["ring"]()


class TestScheduledBanditIsAPolicy(TopologyPolicyLaws):
    def policy(self):
        return Scheduled(bandit())


class TestScheduledRingIsAPolicy(TopologyPolicyLaws):
    def policy(self):
        return Scheduled(ring(), finish_rounds=1)


def test_links_in_every_fourth_round_and_all_of_them_at_the_end():
    draws, _ = play(Scheduled(bandit(), every=4, finish_rounds=2))
    assert [draw.topology.num_links for draw in draws] == [0, 0, 0, 6] * 4 + [0, 0, 20, 20]


def test_a_run_that_goes_on_beyond_its_horizon_is_no_longer_at_its_end():
    draws, _ = play(Scheduled(bandit(), finish_rounds=2), rounds=K + 3)
    assert [draw.topology.num_links for draw in draws[-5:]] == [20, 20, 6, 6, 6]


def test_the_policy_sees_spoken_rounds_only():
    alone, _ = play(Scheduled(POLICIES["exponential-graph"](peers=1)))
    thinned, _ = play(Scheduled(POLICIES["exponential-graph"](peers=1), every=2))
    spoken = [draw.topology for draw in thinned if draw.topology.num_links]
    assert spoken == [draw.topology for draw in alone][: len(spoken)]


@pytest.mark.parametrize("make", [bandit, ring], ids=["bandit", "ring"])
@pytest.mark.parametrize("budget", [0.0, 3.0, 30.0, 100.0, 1e9])
@pytest.mark.parametrize(("share", "attempts"), [(1.0, 1), (0.25, 1), (1.0, 3)])
@pytest.mark.parametrize("finish", [0, 2])
def test_no_run_spends_more_than_its_budget(make, budget, share, attempts, finish):
    policy = Scheduled(make(), finish_rounds=finish, budget_joules=budget, message_share=share, attempts=attempts)
    draws, spent = play(policy, share=share, attempts=attempts)
    assert spent <= budget
    if budget >= 1e9:
        assert all(draw.topology.num_links for draw in draws)


@pytest.mark.parametrize("make", [bandit, ring], ids=["bandit", "ring"])
@pytest.mark.parametrize("attempts", [1, 2])
@pytest.mark.parametrize("budget", [30.0, 100.0, 300.0])
def test_nor_where_reports_are_lost(make, attempts, budget):
    policy = Scheduled(make(), finish_rounds=1, budget_joules=budget, attempts=attempts)
    assert play(policy, attempts=attempts, lost=(2, 3))[1] <= budget


def test_a_policy_of_its_own_number_is_silent_by_what_it_might_draw_not_by_what_it_drew():
    """Were dear draws dropped after the fact, cheap links would come more often than their probability says."""
    policy = Scheduled(POLICIES["balanced-links"](thrift=0.0, learning_rate=0.0), budget_joules=100.0)
    state = policy.init(N)
    for t in range(K):
        context = policy_context(N, t=t, horizon=K)
        drawn = [policy.propose(state, context, stream(seed, "topology", t)) for seed in range(40)]
        assert len({draw.topology.num_links for draw in drawn}) == 1
    assert drawn[0].topology.num_links == N


def test_most_of_a_budget_is_spent():
    _, spent = play(Scheduled(bandit(), budget_joules=100.0, finish_rounds=1))
    assert spent > 80


def test_what_the_budget_cannot_pay_is_dropped_from_the_start_of_the_finish():
    whole = float(policy_context(N).prices.sum())
    draws, spent = play(Scheduled(ring(), finish_rounds=3, budget_joules=1.5 * whole))
    assert draws[-1].topology.num_links == 20
    assert draws[-2].topology.num_links < 20
    assert spent <= 1.5 * whole


def test_the_finish_takes_at_most_half_of_the_budget():
    whole = float(policy_context(N).prices.sum())
    draws, _ = play(Scheduled(bandit(), finish_rounds=10, budget_joules=6.5 * whole))
    assert [draw.topology.num_links == 20 for draw in draws] == [False] * (K - 3) + [True] * 3


def test_the_budget_shrinks_before_the_draw_so_probabilities_stay_exact():
    policy = Scheduled(bandit(), budget_joules=60.0)
    context = policy_context(N, t=9, horizon=K)
    state = policy.init(N)
    draw = policy.propose(state, context, stream(0, "topology", 0))
    links = draw.topology.num_links
    assert draw.propensity.sum() == pytest.approx(links)
    counts = sum(policy.propose(state, context, stream(seed, "topology", 0)).drawn.astype(int) for seed in range(3000))
    np.testing.assert_allclose(counts / 3000, draw.propensity, atol=0.04)


def test_a_plan_is_made_where_one_is_wanted():
    draws, _ = play(Scheduled(ring(), every=2, finish_rounds=1))
    np.testing.assert_array_equal(draws[0].mixing_matrix, np.eye(N))
    np.testing.assert_allclose(draws[-1].mixing_matrix, np.full((N, N), 1 / N))


@pytest.mark.parametrize(
    "settings",
    [{"every": 0}, {"finish_rounds": -1}, {"budget_joules": math.nan}, {"budget_joules": -1.0}, {"attempts": 0}],
)
def test_schedules_that_cannot_work(settings):
    with pytest.raises(ConfigError):
        Scheduled(bandit(), **settings)
