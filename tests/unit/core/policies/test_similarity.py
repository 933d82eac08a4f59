import itertools

import numpy as np
import pytest

from hatdfed.core.links import Topology, all_links
from hatdfed.core.policies.base import Feedback
from hatdfed.core.policies.similarity import (
    SimilarityLinks,
    SimilarityState,
    draw_senders,
    temperature_at,
    two_hop,
)
from hatdfed.core.round import RoundReport, ServerReport
from hatdfed.errors import ConfigError
from hatdfed.randomness import stream
from hatdfed.testing import feedback_for, policy_context


def selection_probabilities(similarity, temperature):
    """q = softmax(τ_t·s): the law of the first sender that is drawn; −inf marks peers that cannot be."""
    weights = np.exp(temperature * similarity - (temperature * similarity).max())
    return weights / weights.sum()


def learn(state, losses):
    """The state after a round in which server i measured `losses[i][k]` for each k it heard."""
    n = len(state.similarity)
    reports = []
    for i in range(n):
        heard = {i: 0.7, **losses.get(i, {})}  # one's own model is judged as well
        loss = np.array(list(heard.values()))
        reports.append(ServerReport(0.5, 30, np.array(list(heard)), np.full(len(heard), np.nan), (), {"loss": loss}))
    pairs = [(i, k) for i, heard in losses.items() for k in heard]
    policy, context = SimilarityLinks(), policy_context(n)
    draw = policy.propose(state, context, stream(0, "unused"))._replace(topology=Topology.from_pairs(n, pairs))
    return policy.update(state, draw, Feedback(RoundReport(tuple(reports)), np.zeros(len(context.links))), context)


def known(n, entries, sampled=()):
    """A state in which `entries[i, j]` is what i thinks of j."""
    state = SimilarityLinks().init(n)
    for place, value in entries.items():
        state.similarity[place] = value
    for place in sampled:
        state.sampled[place] = True
    return state


@pytest.mark.parametrize(
    ("t", "expected"),
    [(0, 1), (1, 3.9900), (2, 6.9213), (5, 14.8635), (10, 23.8478), (20, 29.9208), (50, 30.9973), (10_000, 31)],
)
def test_the_temperature_rises_from_one_to_one_above_its_setting(t, expected):
    assert temperature_at(t, 30) == pytest.approx(expected, abs=5e-5)


def test_a_small_temperature_setting():
    assert temperature_at(10, 1) == pytest.approx(1.7616, abs=5e-5)


@pytest.mark.parametrize(
    ("temperature", "expected"),
    [(1, (0.579259, 0.213097, 0.129250, 0.078394)), (5, (0.992717, 0.006689, 0.000549, 0.000045))],
)
def test_selection_probabilities_of_a_known_row(temperature, expected):
    np.testing.assert_allclose(selection_probabilities(np.array([2, 1, 0.5, 0]), temperature), expected, atol=5e-7)


def test_probabilities_sum_to_one_leave_oneself_out_and_start_uniform():
    row = np.array([0.0, -np.inf, 0.0, 0.0, 0.0])
    np.testing.assert_allclose(selection_probabilities(row, temperature_at(0, 30)), [0.25, 0, 0.25, 0.25, 0.25])
    row[2] = 1e10
    assert selection_probabilities(row, 31).sum() == pytest.approx(1)


def test_a_stranger_is_judged_by_the_most_similar_sender():
    state = learn(known(4, {(1, 3): 3.0, (2, 3): 9.0}), {0: {1: 0.5, 2: 2.0}})
    np.testing.assert_allclose(state.similarity[0], [0, 2, 0.5, 3])  # 9 would be the last sender's, or the largest
    np.testing.assert_array_equal(state.sampled[0], [False, True, True, False])
    q = selection_probabilities(state.similarity[0, 1:], 1)
    np.testing.assert_allclose(q, [0.25372, 0.05661, 0.68967], atol=5e-6)


def test_the_most_similar_sender_may_also_be_the_last_one():
    state = learn(known(4, {(1, 3): 3.0, (2, 3): 9.0}), {0: {1: 2.0, 2: 0.5}})
    assert state.similarity[0, 3] == 9  # 3 would be the first sender's, or the smallest


def test_the_most_similar_sender_is_so_by_what_was_measured_now():
    before = known(4, {(0, 1): 0.1, (0, 2): 10.0, (1, 3): 3.0, (2, 3): 9.0}, sampled=[(0, 1), (0, 2)])
    assert learn(before, {0: {1: 0.5, 2: 2.0}}).similarity[0, 3] == 3


def test_a_measured_score_is_never_replaced_by_hearsay():
    before = known(4, {(0, 3): 0.4, (1, 3): 3.0, (2, 3): 9.0}, sampled=[(0, 3)])
    assert learn(before, {0: {1: 0.5, 2: 2.0}}).similarity[0, 3] == 0.4


def test_hearsay_is_replaced_by_newer_hearsay():
    before = known(4, {(0, 3): 0.4, (1, 3): 3.0})
    assert learn(before, {0: {1: 0.5}}).similarity[0, 3] == 3


def test_only_senders_that_know_the_stranger_are_asked():
    state = learn(known(4, {(2, 3): 9.0}), {0: {1: 0.5, 2: 2.0}})
    assert state.similarity[0, 3] == 9
    assert learn(known(4, {}), {0: {1: 0.5, 2: 2.0}}).similarity[0, 3] == 0


def test_servers_hear_what_others_knew_before_the_round():
    state = learn(known(4, {(1, 3): 5.0}), {0: {1: 0.5}, 1: {3: 0.25}, 2: {1: 0.5}, 3: {1: 1.0, 0: 1.0}})
    assert state.similarity[1, 3] == 4
    assert state.similarity[0, 3] == 5  # not 4, which server 1 found out in this same round
    assert state.similarity[3, 2] == 0  # server 1 learns of nobody but 3
    assert (state.similarity.diagonal() == 0).all()


def test_what_did_not_arrive_teaches_nothing():
    before = known(3, {(0, 1): 2.0, (1, 2): 4.0}, sampled=[(0, 1)])
    after = learn(before, {0: {1: np.nan}})
    np.testing.assert_array_equal(after.similarity, before.similarity)
    np.testing.assert_array_equal(after.sampled, before.sampled)


def test_two_hop_leaves_its_arguments_alone():
    rng = stream(0, "arguments")
    similarity, previous = rng.random((6, 6)), rng.random((6, 6))
    heard = all_links(6) & (rng.random((6, 6)) < 0.4)
    copies = similarity.copy(), previous.copy(), heard.copy()
    estimated = two_hop(similarity, previous, heard, heard)
    for now, before in zip((similarity, previous, heard), copies, strict=True):
        np.testing.assert_array_equal(now, before)
    np.testing.assert_array_equal(estimated[heard], similarity[heard])


@pytest.mark.parametrize("loss", [1e-8, 0.0])
def test_tiny_losses_leave_no_nan_and_no_place_empty(loss):
    policy = SimilarityLinks(neighbours=3)
    state = policy.init(6)
    for t in range(40):
        context = policy_context(6, t=t)
        draw = policy.propose(state, context, stream(0, "tiny", t))
        assert (draw.topology.links.sum(axis=1) == 3).all()
        feedback = feedback_for(draw, stream(0, "round", t))
        servers = tuple(
            report._replace(scores={"loss": np.full(len(report.senders), loss)}) for report in feedback.report.servers
        )
        state = policy.update(state, draw, Feedback(RoundReport(servers), feedback.utility), context)
        assert np.isfinite(state.similarity).all()
    assert np.isfinite(selection_probabilities(state.similarity[0, 1:], 31)).all()


@pytest.mark.parametrize("neighbours", [1, 2, 4, 9])
def test_every_server_has_its_number_of_senders_or_all_others(neighbours):
    policy = SimilarityLinks(neighbours=neighbours)
    draw = policy.propose(known(5, {(0, 1): 1e8}), policy_context(5, t=50), stream(0, "degree"))
    assert (draw.topology.links.sum(axis=1) == min(neighbours, 4)).all()


def test_a_similar_peer_is_all_but_sure_to_be_heard_later_and_not_at_first():
    policy, state = SimilarityLinks(neighbours=1), known(5, {(0, 3): 1.0})

    def share(t):
        context, rng = policy_context(5, t=t), stream(0, "later", t)
        draws = (policy.propose(state, context, rng) for _ in range(500))
        return np.mean([draw.topology.links[0, 3] for draw in draws])

    assert share(50) == 1
    assert share(0) == pytest.approx(np.e / (np.e + 3), abs=4 * np.sqrt(0.25 / 500))


def test_senders_have_the_law_of_one_draw_after_the_other():
    repeats, log_weights = 6_000, np.array([0.0, 2.0, 1.0, 0.5])
    possible = np.broadcast_to([False, True, True, True], (repeats, 4))
    links = draw_senders(np.broadcast_to(log_weights, (repeats, 4)), possible, 2, stream(0, "gumbel"))
    q = [0.0, *selection_probabilities(log_weights[1:], 1.0)]
    for a, b in itertools.combinations(range(1, 4), 2):
        p = q[a] * q[b] / (1 - q[a]) + q[b] * q[a] / (1 - q[b])
        assert abs((links[:, a] & links[:, b]).mean() - p) < 4 * np.sqrt(p * (1 - p) / repeats)
    assert not links[:, 0].any()


def test_nobody_is_lost_when_servers_join():
    state = SimilarityLinks().grow(known(2, {(0, 1): 2.0}, sampled=[(0, 1)]), 4)
    assert isinstance(state, SimilarityState)
    assert state.similarity[0, 1] == 2
    assert state.similarity.sum() == 2
    assert state.sampled.sum() == 1


@pytest.mark.parametrize("settings", [{"neighbours": 0}, {"temperature": -1.0}, {"temperature": float("nan")}])
def test_settings_that_cannot_work_are_refused(settings):
    with pytest.raises(ConfigError):
        SimilarityLinks(**settings)
