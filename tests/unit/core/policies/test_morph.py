import numpy as np
import pytest

from hatdfed.core.links import all_links
from hatdfed.core.policies.base import Feedback
from hatdfed.core.policies.morph import Morph, MorphState, estimate_similarity
from hatdfed.core.round import RoundReport
from hatdfed.errors import ConfigError
from hatdfed.randomness import stream
from hatdfed.testing import TopologyPolicyLaws, feedback_for, policy_context

NAN = np.nan


class TestLawsWithRareChanges(TopologyPolicyLaws):
    def policy(self):
        return Morph(degree=3, change_every=3, sharpness=10.0)


def play(policy, num_servers, rounds, similarity=None):
    """The links of every round and the last state; similarities are constant if given."""
    state, links = policy.init(num_servers), []
    for t in range(rounds):
        context = policy_context(num_servers, t=t)
        draw = policy.propose(state, context, stream(0, "topology", t))
        feedback = feedback_for(draw, stream(0, "round", t))
        if similarity is not None:
            servers = tuple(
                report._replace(scores={"similarity": row[report.senders]})
                for report, row in zip(feedback.report.servers, similarity, strict=True)
            )
            feedback = Feedback(RoundReport(servers), feedback.utility)
        state = policy.update(state, draw, feedback, context)
        links.append(draw.topology.links)
    return links, state


def settled(similarity_row):
    """Five servers that hear the next two, of which server 0 has measured all others."""
    links = np.roll(np.eye(5, dtype=bool), 1, axis=1) | np.roll(np.eye(5, dtype=bool), 2, axis=1)
    similarity = np.full((5, 5), NAN)
    similarity[0, 1:] = similarity_row
    return MorphState(links, similarity)


@pytest.mark.parametrize(("degree", "num_servers"), [(1, 5), (2, 5), (3, 7), (4, 5), (9, 5)])
def test_the_number_of_senders_never_changes(degree, num_servers):
    links, _ = play(Morph(degree=degree), num_servers, 30)
    for one in links:
        assert (one.sum(axis=1) == min(degree, num_servers - 1)).all()


def test_exactly_one_sender_is_exchanged_when_it_is_time():
    links, _ = play(Morph(degree=2, change_every=3), 6, 12)
    for t in range(1, 12):
        changed = (links[t] != links[t - 1]).sum(axis=1)
        assert (changed == (2 if t % 3 == 0 else 0)).all()


def test_the_first_senders_are_uniformly_random():
    policy, counts, repeats, rng = Morph(degree=2), np.zeros((5, 5)), 4_000, stream(0, "first")
    state, context = policy.init(5), policy_context(5)
    for _ in range(repeats):
        counts += policy.propose(state, context, rng).topology.links
    assert (np.abs(counts / repeats - 0.5)[all_links(5)] < 4.5 * np.sqrt(0.25 / repeats)).all()


def test_proposing_does_not_choose_for_good():
    policy = Morph()
    state = policy.init(6)
    draws = [policy.propose(state, policy_context(6), stream(0, "twice", k)).topology for k in range(2)]
    assert draws[0] != draws[1]
    assert not state.senders.any()


def test_a_sharp_choice_adds_the_least_similar_and_drops_the_most_similar():
    state = settled([0.9, 0.8, 0.1, -0.2])  # of servers 1 and 2, heard now, and 3 and 4, not heard
    for k in range(20):
        draw = Morph(degree=2, sharpness=1000.0).propose(state, policy_context(5, t=1), stream(0, "sharp", k))
        assert draw.topology.senders(0) == (2, 4)  # the wrong sign would give (1, 3)


def test_one_exchange_follows_both_softmaxes():
    policy, state, repeats, rng = Morph(sharpness=2.0), settled([0.9, 0.1, 0.5, -0.5]), 5_000, stream(0, "law")
    counts, context = np.zeros(5), policy_context(5, t=1)
    for _ in range(repeats):
        counts += policy.propose(state, context, rng).topology.links[0]
    dropped_1 = np.exp(1.8) / (np.exp(1.8) + np.exp(0.2))
    added_4 = np.exp(1.0) / (np.exp(1.0) + np.exp(-1.0))
    expected = np.array([0, 1 - dropped_1, dropped_1, 1 - added_4, added_4])
    assert (np.abs(counts / repeats - expected) <= 4 * np.sqrt(expected * (1 - expected) / repeats)).all()


def test_dissimilar_servers_are_heard_more_often():
    similarity = np.tile([0.9, 0.6, 0.3, 0.0, -0.3, -0.6], (6, 1))
    links, _ = play(Morph(degree=2, sharpness=2.0), 6, 600, similarity)
    heard = np.mean(links, axis=0).sum(axis=0)
    assert (np.diff(heard) > 0).all()


def test_without_sharpness_nobody_is_preferred():
    similarity = np.tile([0.9, 0.6, 0.3, 0.0, -0.3, -0.6], (6, 1))
    links, _ = play(Morph(degree=2, sharpness=0.0), 6, 600, similarity)
    np.testing.assert_allclose(np.mean(links, axis=0).sum(axis=0), 2, atol=0.2)


def test_strangers_are_judged_through_those_in_between():
    measured = np.array(
        [
            [NAN, 0.5, -0.4, NAN, NAN],
            [NAN, NAN, NAN, 0.8, NAN],
            [NAN, NAN, NAN, 0.5, NAN],
            [0.3, NAN, NAN, NAN, NAN],
            [NAN, NAN, NAN, NAN, NAN],
        ]
    )
    estimate = estimate_similarity(measured)
    np.testing.assert_allclose(estimate[0, 1:], [0.5, -0.4, (0.5 * 0.8 - 0.4 * 0.5) / 2, 0.05])
    np.testing.assert_allclose(estimate[1, [0, 2, 3, 4]], [0.8 * 0.3, 0.8, 0.8, 0.8])
    np.testing.assert_allclose(estimate[4], 0)
    assert np.isfinite(estimate).all()


def test_a_measured_zero_is_knowledge():
    measured = np.full((3, 3), NAN)
    measured[0, 1], measured[0, 2], measured[1, 2] = 0.0, 0.9, 0.7
    assert estimate_similarity(measured)[0, 1] == 0
    assert estimate_similarity(measured)[0, 2] == 0.9
    measured[0, 2] = NAN
    assert estimate_similarity(measured)[0, 2] == 0  # through server 1, 0·0.7


def test_the_state_keeps_the_last_measurement_and_the_links_of_the_draw():
    links, state = play(Morph(), 5, 8)
    np.testing.assert_array_equal(state.senders, links[-1])
    assert np.isnan(state.similarity.diagonal()).all()
    np.testing.assert_array_equal(np.isnan(state.similarity), ~np.any(links, axis=0))


def test_an_absent_sender_is_replaced():
    active = np.array([True, False, True, True, True])
    for k in range(20):
        draw = Morph().propose(settled([0.0] * 4), policy_context(5, t=1, active=active), stream(0, "absent", k))
        np.testing.assert_array_equal(draw.topology.links.sum(axis=1), [2, 0, 2, 2, 2])
        assert draw.topology.links[0, 2]  # the sender that is still there is kept until the next exchange


@pytest.mark.parametrize("settings", [{"degree": 0}, {"change_every": 0}, {"sharpness": -1.0}])
def test_settings_that_cannot_work_are_refused(settings):
    with pytest.raises(ConfigError):
        Morph(**settings)
