"""The bandit's estimate is unbiased, and the two known ways to spoil it are noticed."""

import numpy as np
import pytest

from hatdfed.core.links import LinkTable
from hatdfed.core.policies.base import Feedback
from hatdfed.core.policies.link_bandit import BanditState, LinkBandit, reward_estimate, theorem_learning_rate
from hatdfed.core.round import RoundReport, ServerReport
from hatdfed.errors import ConfigError
from hatdfed.randomness import stream
from hatdfed.testing import policy_context

N = 5
LINKS = LinkTable.all_of(N)
REPEATS = 6_000


def context():
    return policy_context(N, budget=6, horizon=200)


def skewed_state():
    """Weights far enough apart that two links are capped at probability 1."""
    log_weights = stream(3, "weights").normal(0, 1, (N, N))
    log_weights[0, 1] = log_weights[2, 3] = 6.0
    return BanditState(LINKS.from_dense(log_weights))


def mean_estimate(policy):
    rng, utility = stream(0, "estimator"), stream(1, "utility").random(len(LINKS))
    total, square = np.zeros(len(LINKS)), np.zeros(len(LINKS))
    state, now = skewed_state(), context()
    for _ in range(REPEATS):
        draw = policy.propose(state, now, rng)
        estimate = reward_estimate(utility, draw.drawn, draw.propensity)
        total += estimate
        square += estimate**2
    mean = total / REPEATS
    return mean, np.sqrt(np.maximum(square / REPEATS - mean**2, 0) / REPEATS), utility, draw


def test_the_estimate_is_unbiased_for_every_link_capped_ones_included():
    mean, error, utility, draw = mean_estimate(LinkBandit())
    assert (LINKS.to_dense(draw.propensity)[[0, 2], [1, 3]] == 1).all()
    assert (np.abs(mean - utility) <= 4 * error + 1e-9).all()


def test_probabilities_taken_after_rounding_are_biased_and_noticed():
    """The released code rounds in place and divides by 1: drawn links look worse than links that were not."""
    mean, error, utility, _ = mean_estimate(LinkBandit(propensity="after-rounding"))
    biased = np.abs(mean - utility) > 4 * error + 1e-9
    assert biased.mean() > 0.8
    assert (mean - utility >= -1e-9).all()


def test_clipping_without_redistribution_draws_too_few_links():
    state, rng = skewed_state(), stream(0, "clip")
    clipped = LinkBandit(capping="clip").propose(state, context(), rng)
    repaired = LinkBandit().propose(state, context(), rng)
    assert clipped.propensity.sum() < 5.0
    assert repaired.propensity.sum() == pytest.approx(6.0, abs=1e-9)
    assert repaired.topology.num_links == 6


def test_a_draw_carries_probabilities_that_nobody_can_change():
    draw = LinkBandit().propose(skewed_state(), context(), stream(0, "draw"))
    with pytest.raises(ValueError, match="read-only"):
        draw.propensity[0] = 0.5
    assert not np.isin(draw.propensity, (0.0, 1.0)).all()


def report(draw, missing=()):
    def one(i):
        senders = np.array([i, *draw.topology.senders(i)])
        return None if i in missing else ServerReport(0.5, 10, senders, np.full(len(senders), np.nan), ())

    return RoundReport(tuple(one(i) for i in range(N)))


def test_better_links_become_more_likely():
    policy, rng = LinkBandit(learning_rate=0.1), stream(0, "learning")
    utility = LINKS.at_senders(np.where(np.arange(N) < 2, 0.9, 0.1))
    state = policy.init(N)
    for _ in range(200):
        draw = policy.propose(state, context(), rng)
        state = policy.update(state, draw, Feedback(report(draw), utility), context())
    p = policy.propose(state, context(), rng).propensity
    assert p[LINKS.sender < 2].mean() > 2 * p[LINKS.sender >= 2].mean()


def test_links_into_a_server_without_a_report_keep_their_standing():
    policy = LinkBandit(learning_rate=0.1)
    draw = policy.propose(policy.init(N), context(), stream(0, "silent"))
    silent = int(draw.topology.pairs[0, 0])
    feedback = Feedback(report(draw, missing=(silent,)), np.full(len(LINKS), 0.2))
    after = policy.update(policy.init(N), draw, feedback, context()).log_weights
    others = after[LINKS.receiver != silent]
    np.testing.assert_allclose(after[LINKS.receiver == silent], np.full(N - 1, others.mean()))


@pytest.mark.parametrize("missing", [(), (4,)], ids=["absent in a simulation", "no report from a real one"])
def test_links_of_a_server_that_was_away_are_no_likelier_when_it_comes_back(missing):
    """Nothing was learned about links into it and from it: all are worth the same, so all stay alike on average."""
    policy, rng, state = LinkBandit(learning_rate=0.02), stream(0, "away"), LinkBandit().init(N)
    away = context()._replace(active=np.arange(N) < N - 1)
    utility = np.where(away.possible, 0.5, 0.0)
    for _ in range(300):
        draw = policy.propose(state, away, rng)
        state = policy.update(state, draw, Feedback(report(draw, missing), utility), away)
    others = state.log_weights[away.possible].mean()
    np.testing.assert_allclose(state.log_weights[~away.possible], others)


def test_new_servers_start_at_the_mean_and_old_weights_stay():
    state = skewed_state()
    grown = LinkTable.all_of(N + 2).to_dense(LinkBandit().grow(state, N + 2).log_weights)
    np.testing.assert_array_equal(grown[:N, :N], LINKS.to_dense(state.log_weights))
    assert grown[N, 0] == grown[0, N] == grown[N, N + 1] == pytest.approx(state.log_weights.mean())


def test_the_default_learning_rate_is_the_theorems():
    assert theorem_learning_rate(5, 200) == pytest.approx(np.sqrt(200 * np.log(5)) / 1000)
    assert theorem_learning_rate(5, 200) == pytest.approx(0.018, abs=5e-4)


def test_exploration_keeps_every_link_alive():
    draw = LinkBandit(exploration=0.2).propose(skewed_state(), context(), stream(0, "explore"))
    assert draw.propensity.min() >= 0.2 * 6 / 20 - 1e-12
    assert draw.topology.num_links == 6


@pytest.mark.parametrize("settings", [{"exploration": 2.0}, {"exploration": 0.1, "capping": "clip"}])
def test_exploration_that_cannot_work_is_refused(settings):
    with pytest.raises(ConfigError, match="exploration"):
        LinkBandit(**settings)


@pytest.mark.parametrize("missing", [(), (1,), (0, 3), tuple(range(N))])
def test_weights_move_by_the_rate_times_the_estimate_of_every_link(missing):
    """The update looks at drawn links alone; here it is written out for all of them."""
    policy, state = LinkBandit(learning_rate=0.1), skewed_state()
    draw = policy.propose(state, context(), stream(0, "dense"))
    utility = stream(1, "utility").random(len(LINKS))
    after = policy.update(state, draw, Feedback(report(draw, missing), utility), context())
    estimate, known = reward_estimate(utility, draw.drawn, draw.propensity), ~np.isin(LINKS.receiver, missing)
    estimate[~known] = estimate[known].mean() if known.any() else 0.0
    expected = state.log_weights + 0.1 * estimate
    np.testing.assert_allclose(after.log_weights, expected - expected.max(), atol=1e-12)
