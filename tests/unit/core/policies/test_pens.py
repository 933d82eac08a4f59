import numpy as np
import pytest

from hatdfed.core.links import Topology, all_links
from hatdfed.core.policies.base import Feedback
from hatdfed.core.policies.pens import Pens, PensState, find_neighbours
from hatdfed.core.round import RoundReport
from hatdfed.errors import ConfigError
from hatdfed.randomness import stream
from hatdfed.testing import TopologyPolicyLaws, feedback_for, policy_context


class TestLawsOfTheSecondPhase(TopologyPolicyLaws):
    def policy(self):
        return Pens(first_phase=0.02)  # one round of 50


def play_round(policy, state, t, kept, *, missing=(), horizon=40):
    """A round after which server i had merged the models `kept[i]` only."""
    n = len(state.rounds)
    context = policy_context(n, t=t, horizon=horizon)
    draw = policy.propose(state, context, stream(0, "topology", t))
    draw = draw._replace(topology=Topology(all_links(n)))
    feedback = feedback_for(draw, stream(0, "round", t), missing=missing)
    servers = tuple(
        report and report._replace(importance=np.where(np.isin(report.senders, [i, *kept.get(i, ())]), 0.5, 0.0))
        for i, report in enumerate(feedback.report.servers)
    )
    return policy.update(state, draw, Feedback(RoundReport(servers), feedback.utility), context)


def found(selected_by_server_0, rounds, best=2):
    """The neighbours of server 0, of five, after so many selections."""
    selected = np.zeros((5, 5), dtype=np.int64)
    selected[0] = selected_by_server_0
    return np.flatnonzero(find_neighbours(PensState(selected, np.full(5, rounds)), best)[0]).tolist()


def test_neighbours_were_kept_in_more_than_their_share_of_the_rounds():
    # best / N·rounds = 2 / 5·10 = 4: exactly 4 is not more than 4.
    assert found([0, 3, 4, 5, 8], rounds=10) == [3, 4]


def test_the_threshold_counts_rounds_and_not_contacts():
    # Server 1 was asked for three times and kept each time, but that is not often in ten rounds.
    assert found([0, 3, 9, 0, 8], rounds=10) == [2, 4]


def test_a_count_on_the_threshold_is_not_above_it_even_in_floats():
    for n in range(2, 60):
        selected = np.full((n, n), 2, dtype=np.int64)
        assert not find_neighbours(PensState(selected, np.full(n, n)), 2).any()
        assert find_neighbours(PensState(selected + 1, np.full(n, n)), 2).all()


def test_models_with_weight_in_the_merge_are_counted_and_ones_own_is_not():
    policy = Pens()
    state = policy.init(4)
    for t in range(3):
        state = play_round(policy, state, t, {0: [1, 2], 1: [3]})
    np.testing.assert_array_equal(state.selected, [[0, 3, 3, 0], [0, 0, 0, 3], [0] * 4, [0] * 4])
    np.testing.assert_array_equal(state.rounds, 3)


def test_a_round_without_a_report_is_no_round():
    policy = Pens()
    state = play_round(policy, policy.init(4), 0, {0: [1], 1: [2]}, missing=[0])
    np.testing.assert_array_equal(state.rounds, [0, 1, 1, 1])
    assert not state.selected[0].any()


def test_the_second_phase_begins_after_its_share_of_the_horizon():
    policy = Pens(sampled=3, best=2, first_phase=0.25)
    state = policy.init(6)
    for t in range(20):
        links = policy.propose(state, policy_context(6, t=t, horizon=40), stream(0, "phase", t)).topology.links
        if t < 10:
            assert (links.sum(axis=1) == 3).all()
        else:
            np.testing.assert_array_equal(links, find_neighbours(state, 2))
            assert state.rounds[0] == 10
        state = play_round(policy, state, t, {0: [1, 4], 1: [2], 3: [0, 5]})
    assert links.sum() == 5


def test_a_phase_that_ends_within_a_round_lasts_until_its_end():
    policy = Pens(first_phase=0.25)
    for t, degree in [(2, 3), (3, 0)]:
        draw = policy.propose(policy.init(6), policy_context(6, t=t, horizon=10), stream(0, "half"))
        assert (draw.topology.links.sum(axis=1) == degree).all()


def test_no_neighbours_means_no_link_for_that_server_only():
    selected = np.zeros((4, 4), dtype=np.int64)
    selected[0, [1, 2]] = 10
    selected[2, 3] = 10
    state = PensState(selected, np.full(4, 10))
    links = Pens().propose(state, policy_context(4, t=30, horizon=40), stream(0, "none")).topology.links
    np.testing.assert_array_equal(links.sum(axis=1), [2, 0, 1, 0])


def test_more_neighbours_than_needed_are_drawn_uniformly():
    selected = 10 * all_links(5).astype(np.int64)
    state, counts, repeats = PensState(selected, np.full(5, 10)), np.zeros((5, 5)), 4_000
    rng, context = stream(0, "uniform"), policy_context(5, t=30, horizon=40)
    for _ in range(repeats):
        links = Pens(best=2).propose(state, context, rng).topology.links
        assert (links.sum(axis=1) == 2).all()
        counts += links
    assert (np.abs(counts / repeats - 0.5)[all_links(5)] < 4.5 * np.sqrt(0.25 / repeats)).all()


def test_few_servers_hear_all_others_in_the_first_phase():
    draw = Pens(sampled=3).propose(Pens().init(3), policy_context(3), stream(0, "few"))
    assert draw.topology.num_links == 6


@pytest.mark.parametrize(
    "settings", [{"best": 0}, {"best": 4, "sampled": 3}, {"first_phase": 0.0}, {"first_phase": 1.5}]
)
def test_settings_that_cannot_work_are_refused(settings):
    with pytest.raises(ConfigError):
        Pens(**settings)
