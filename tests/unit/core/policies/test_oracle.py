import numpy as np
import pytest

from hatdfed.core.links import all_links
from hatdfed.core.policies.base import Feedback
from hatdfed.core.policies.greedy import HindsightOracle
from hatdfed.core.policies.link_bandit import LinkBandit
from hatdfed.core.regret import best_links_utility
from hatdfed.randomness import stream
from hatdfed.testing import feedback_for, policy_context

N, BUDGET, ROUNDS = 5, 6, 200


def worth():
    """What each link is worth, from 0.2 to 0.8."""
    return stream(0, "order").permutation(np.linspace(0.2, 0.8, N * (N - 1)))


def regret_by_round(policy, utility_at):
    """Utility missed so far against the best fixed set of links, after each round."""
    state, total, drawn, regret = policy.init(N), np.zeros(N * (N - 1)), 0.0, []
    for t in range(ROUNDS):
        context = policy_context(N, t=t, budget=BUDGET, horizon=ROUNDS)
        draw = policy.propose(state, context, stream(0, "topology", t))
        feedback = Feedback(feedback_for(draw, stream(0, "round", t)).report, utility_at(t))
        state = policy.update(state, draw, feedback, context)
        total += feedback.utility
        drawn += feedback.utility[draw.drawn].sum()
        regret.append(best_links_utility(total, BUDGET) - drawn)
    return np.array(regret)


def test_on_constant_utilities_only_the_first_round_is_missed():
    regret = regret_by_round(HindsightOracle(), lambda t: worth())
    best = best_links_utility(worth(), BUDGET)
    assert 0 <= regret[0] <= best
    np.testing.assert_allclose(regret, regret[0], atol=1e-9)
    assert regret[-1] / ROUNDS < 0.01 * best


@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_the_bandit_misses_more(noise):
    def utility_at(t):
        return worth() + noise * (stream(0, "noise", t).random(N * (N - 1)) - 0.5)

    oracle, bandit = (regret_by_round(policy, utility_at)[-1] for policy in (HindsightOracle(), LinkBandit()))
    assert oracle < 0.1 * bandit


def test_links_count_whether_they_were_drawn_or_not():
    policy, context = HindsightOracle(), policy_context(3, budget=1)
    draw = policy.propose(policy.init(3), context, stream(0, "first"))
    utility = np.where(all_links(3) & ~draw.topology.links, 0.2, 0.0)
    receiver, sender = np.argwhere(all_links(3) & ~draw.topology.links)[0]
    utility[receiver, sender] = 0.9
    report = feedback_for(draw, stream(0, "round"), missing=[receiver]).report
    feedback = Feedback(report, draw.links.from_dense(utility))
    state = policy.update(policy.init(3), draw, feedback, context)
    assert policy.propose(state, policy_context(3, t=1, budget=1), stream(0, "second")).topology.links[receiver, sender]


def test_the_first_draw_is_uniform():
    policy, rng, repeats, drawn = HindsightOracle(), stream(0, "uniform"), 6_000, np.zeros((3, 3))
    state, context = policy.init(3), policy_context(3, budget=2)
    for _ in range(repeats):
        drawn += policy.propose(state, context, rng).topology.links
    assert (np.abs(drawn / repeats - 1 / 3)[all_links(3)] < 4 * np.sqrt(2 / 9 / repeats)).all()


def test_all_rounds_count_and_not_the_last_one_alone():
    policy, context = HindsightOracle(), policy_context(3, budget=1)
    state = policy.init(3)
    for early, steady in [(0.9, 0.4), (0.1, 0.4)]:
        utility = np.zeros((3, 3))
        utility[0, 1], utility[1, 2] = early, steady
        draw = policy.propose(state, context, stream(0, "draw"))
        report = feedback_for(draw, stream(0, "round")).report
        state = policy.update(state, draw, Feedback(report, context.links.from_dense(utility)), context)
    assert policy.propose(state, context, stream(0, "last")).topology.links[0, 1]
