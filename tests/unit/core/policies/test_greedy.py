import numpy as np
import pytest

from hatdfed.core.links import LinkTable, all_links
from hatdfed.core.policies.base import Feedback
from hatdfed.core.policies.baselines import RandomLinks
from hatdfed.core.policies.greedy import EpsilonGreedy, MeansState, UpperConfidence, largest_links
from hatdfed.errors import ConfigError
from hatdfed.jsonable import to_jsonable
from hatdfed.randomness import stream
from hatdfed.testing import feedback_for, policy_context

N, BUDGET = 5, 6


def toy_means():
    """What the 20 links among five servers are worth on average: from 0.1 to 0.9, in no order."""
    return stream(0, "order").permutation(np.linspace(0.1, 0.9, N * (N - 1)))


def means_state(counts, sums):
    """A state from matrices."""
    links = LinkTable.all_of(len(counts))
    return MeansState(links.from_dense(counts), links.from_dense(sums))


def play(policy, rounds, *, seed=0, spoil=lambda utility, seen: utility, missing=()):
    """Mean utility drawn in each round of a game with utilities of 0 or 1, and the last state."""
    means, state, gains = toy_means(), policy.init(N), []
    for t in range(rounds):
        context = policy_context(N, t=t, budget=BUDGET)
        draw = policy.propose(state, context, stream(seed, "topology", t))
        assert draw.topology.num_links == BUDGET
        feedback = feedback_for(draw, stream(seed, "round", t), missing=missing)
        utility = (stream(seed, "utility", t).random(len(means)) < means).astype(float)
        seen = draw.drawn & draw.links.at_receivers(feedback.report.reported)
        state = policy.update(state, draw, Feedback(feedback.report, spoil(utility, seen)), context)
        gains.append(means[draw.drawn].sum())
    return np.array(gains), state


@pytest.mark.parametrize("policy", [EpsilonGreedy(), UpperConfidence()])
def test_the_best_links_are_learned(policy):
    best = np.sort(toy_means())[-BUDGET:].sum()
    gains = np.mean([play(policy, 400, seed=seed)[0] for seed in range(2)], axis=0)
    random = play(RandomLinks(), 400)[0].mean()
    assert random == pytest.approx(3.0, abs=0.1)
    assert gains[-100:].mean() > random + 0.6 * (best - random)
    assert gains[-100:].mean() > gains[:100].mean()


@pytest.mark.parametrize("policy", [EpsilonGreedy(), UpperConfidence()])
def test_links_that_were_not_drawn_or_not_reported_are_never_looked_at(policy):
    def poison(utility, seen):
        return np.where(seen, utility, np.nan)

    honest, poisoned = (play(policy, 60, spoil=spoil, missing=[2])[1] for spoil in (lambda u, _: u, poison))
    assert to_jsonable(honest) == to_jsonable(poisoned)
    counts = LinkTable.all_of(N).by_receiver(honest.counts)
    assert not counts[2].any()
    assert counts[[0, 1, 3, 4]].sum() > 0


def test_counts_and_sums_are_those_of_the_links_that_were_seen():
    policy, utility = EpsilonGreedy(), np.linspace(0, 1, 6)
    draw = policy.propose(policy.init(3), policy_context(3, budget=2), stream(0, "draw"))
    feedback = feedback_for(draw, stream(0, "round"))._replace(utility=utility)
    state = policy.update(policy.init(3), draw, feedback, policy_context(3))
    np.testing.assert_array_equal(state.counts, draw.drawn)
    np.testing.assert_array_equal(state.sums, np.where(draw.drawn, utility, 0))


def test_without_exploration_the_largest_means_are_drawn_and_unseen_links_count_as_one():
    counts = all_links(3).astype(np.int64) * 2
    sums = np.array([[0, 1.8, 1.0], [0.2, 0, 0.4], [0.6, 0.8, 0]])
    counts[2, 0], sums[2, 0] = 0, 0
    draw = EpsilonGreedy(exploration=0).propose(
        means_state(counts, sums), policy_context(3, t=5, budget=2), stream(0, "greedy")
    )
    assert np.argwhere(draw.topology.links).tolist() == [[0, 1], [2, 0]]


def test_sums_are_not_taken_for_means():
    counts, sums = np.zeros((3, 3), dtype=np.int64), np.zeros((3, 3))
    counts[all_links(3)], sums[all_links(3)] = 1, 0.5
    counts[0, 1], sums[0, 1] = 10, 4.0  # a larger sum, a smaller mean
    for k in range(10):
        draw = EpsilonGreedy(exploration=0).propose(
            means_state(counts, sums), policy_context(3, t=5, budget=5), stream(0, "means", k)
        )
        assert not draw.topology.links[0, 1]


def test_exploration_gives_every_other_link_its_chance():
    policy, repeats, rng = EpsilonGreedy(exploration=0.3), 5_000, stream(0, "explore")
    counts, sums = all_links(3).astype(np.int64), np.zeros((3, 3))
    sums[0, 1] = 1.0
    state, drawn, context = means_state(counts, sums), np.zeros((3, 3)), policy_context(3, t=5, budget=1)
    for _ in range(repeats):
        drawn += policy.propose(state, context, rng).topology.links
    # An only place that explores may also come upon the best link, by chance.
    expected = np.where(all_links(3), 0.3 / 6, 0.0)
    expected[0, 1] += 0.7
    assert (np.abs(drawn / repeats - expected) <= 4 * np.sqrt(expected * (1 - expected) / repeats)).all()


def test_full_exploration_is_uniform():
    policy, repeats, rng, drawn = EpsilonGreedy(exploration=1), 5_000, stream(0, "uniform"), np.zeros((3, 3))
    state = means_state(all_links(3).astype(np.int64), np.arange(9.0).reshape(3, 3) / 9)
    context = policy_context(3, t=5, budget=2)
    for _ in range(repeats):
        drawn += policy.propose(state, context, rng).topology.links
    assert (np.abs(drawn / repeats - 1 / 3)[all_links(3)] < 4 * np.sqrt(2 / 9 / repeats)).all()


def test_upper_confidence_sees_every_link_before_any_twice():
    _, state = play(UpperConfidence(), 4)
    assert (state.counts >= 1).all()


def test_the_bonus_is_that_of_the_formula():
    counts, sums = np.full((2, 2), 4), np.zeros((2, 2))
    counts[1, 0] = 1
    # At t = 9: √(1.5·ln 10 / 4) = 0.929 and √(1.5·ln 10 / 1) = 1.858, so the means break even at 0.929 apart.
    half_width = np.sqrt(1.5 * np.log(10) / 4)
    for mean, better in [(half_width + 0.001, (0, 1)), (half_width - 0.001, (1, 0))]:
        sums[0, 1] = 4 * mean
        draw = UpperConfidence().propose(means_state(counts, sums), policy_context(2, t=9, budget=1), stream(0, "ucb"))
        assert draw.topology.links[better]


def test_ties_are_broken_at_random():
    rng, repeats, drawn = stream(0, "ties"), 6_000, np.zeros(6)
    for _ in range(repeats):
        drawn += largest_links(np.ones(6), np.ones(6, dtype=bool), 2, rng)
    assert (np.abs(drawn / repeats - 1 / 3) < 4 * np.sqrt(2 / 9 / repeats)).all()


def test_nothing_is_forgotten_when_servers_join():
    state = EpsilonGreedy().grow(MeansState(np.full(2, 3), np.ones(2)), 3)
    assert state.counts.sum() == 6
    mean = LinkTable.all_of(3).to_dense(state.mean(unseen=1.0))
    assert mean[2, 0] == 1
    assert mean[1, 0] == pytest.approx(1 / 3)


@pytest.mark.parametrize("make", [lambda: EpsilonGreedy(exploration=1.1), lambda: UpperConfidence(width=-1.0)])
def test_settings_that_cannot_work_are_refused(make):
    with pytest.raises(ConfigError):
        make()
