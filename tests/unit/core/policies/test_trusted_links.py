"""Links that learn whom to hear: phases, introductions, verdicts, groups, and forgetting."""

import json
import math

import numpy as np
import pytest

from hatdfed.core.beliefs import NO_GROUP
from hatdfed.core.candidates import regular_graph, swap_candidates
from hatdfed.core.links import LinkTable, all_links
from hatdfed.core.policies.base import Feedback, find_beliefs, silence
from hatdfed.core.policies.scheduled import Scheduled, ScheduleState
from hatdfed.core.policies.trusted_links import (
    DOUBTFUL,
    TrustedLinks,
    find_new_groups,
    find_trust,
    leave_out_harmful,
    weigh_praise,
)
from hatdfed.core.round import RoundReport, ServerReport
from hatdfed.errors import ConfigError
from hatdfed.jsonable import from_jsonable, to_jsonable
from hatdfed.randomness import stream
from hatdfed.testing import TopologyPolicyLaws, policy_context

N, K = 6, 20
GROUP = np.arange(N) % 2
TOGETHER = (GROUP[:, None] == GROUP) & all_links(N)
APART = all_links(N) & ~TOGETHER
HARM = np.where(TOGETHER, 0.0, 2.0)  # [N, N] row receives

# All exchange models until round 9 at the latest, then train alone in one round, and are introduced in the next.
POLICY = TrustedLinks(latest=0.5, ready=0.6, quiet=1, curiosity=0.0, again=1.0)
AT_ONCE = TrustedLinks(latest=0.0, curiosity=0.0, again=1.0)


class TestLawsBeforeTheIntroduction(TopologyPolicyLaws):
    sizes = (2, 3, 5, 8, 18)

    def policy(self):
        return TrustedLinks(latest=1.0)


class TestLawsAfterTheIntroduction(TopologyPolicyLaws):
    sizes = (2, 3, 5, 8, 18)

    def policy(self):
        return TrustedLinks(latest=0.0, curiosity=0.5)


def context_at(t, num_servers=N, **more):
    return policy_context(num_servers, t=t, horizon=K, **more)


def reports(draw, *, knowledge=0.8, harm=None, evidence=10.0, missing=()):
    """Every drawn link delivered; matrices [N, N] say what each receiver found out about each sender."""
    size = draw.topology.num_servers
    harm = np.zeros((size, size)) if harm is None else harm
    evidence, knowledge = np.broadcast_to(evidence, (size, size)), np.broadcast_to(knowledge, size)

    def report(i):
        senders = np.array([i, *draw.topology.senders(i)], dtype=np.int64)
        scores = {
            "harm": np.where(senders == i, 0.0, harm[i, senders]),
            "evidence": evidence[i, senders],
            "knowledge": np.full(len(senders), knowledge[i]),
        }
        return ServerReport(0.5, 10, senders, np.full(len(senders), 1 / len(senders)), energy=(), scores=scores)

    return RoundReport(tuple(None if i in missing else report(i) for i in range(size)))


def play(policy, state, t, context=None, **told):
    """One round; the draw, and the state after it."""
    context = context or context_at(t)
    draw = policy.propose(state, context, stream(0, "topology", t))
    feedback = Feedback(reports(draw, **told), np.zeros(len(context.links)))
    return draw, policy.update(state, draw, feedback, context)


def acquainted(policy=AT_ONCE, **told):
    """The state after the introduction, in round 0, in which verdicts separated the two groups."""
    _, state = play(policy, policy.init(N), 0, **{"harm": HARM, **told})
    return state


def test_at_first_all_exchange_models_of_strangers_and_what_servers_know_is_noted():
    state = POLICY.init(N)
    for t in range(9):
        draw, state = play(POLICY, state, t, knowledge=0.05 * t)
        assert (draw.topology.links.sum(axis=0) == 1).all()
        assert (draw.topology.links.sum(axis=1) == 1).all()
        np.testing.assert_allclose(draw.mixing[draw.places], DOUBTFUL / 2)
        np.testing.assert_allclose(state.knowledge, 0.05 * t)
    assert not state.is_introduced.any()


def test_when_they_know_enough_on_average_they_train_alone_and_everybody_is_introduced_to_everybody():
    knowledge = np.array([0.2, 0.9, 0.9, 0.9, 0.9, 0.9])  # mean 0.78
    draw, state = play(POLICY, POLICY.init(N), 2, knowledge=knowledge)
    assert draw.topology.num_links == N
    draw, state = play(POLICY, state, 3, knowledge=knowledge)
    assert draw.topology.num_links == 0
    np.testing.assert_array_equal(draw.mixing_matrix, np.eye(N))
    draw, state = play(POLICY, state, 4, harm=HARM)
    assert draw.topology.num_links == N * (N - 1)
    assert state.is_introduced.all()


@pytest.mark.parametrize("quiet", [0, 1, 3])
def test_at_the_latest_they_are_introduced_whatever_they_know(quiet):
    policy = TrustedLinks(latest=0.5, quiet=quiet, curiosity=0.0)
    state = policy.init(N)
    num_links = []
    for t in range(11 + quiet):
        draw, state = play(policy, state, t, knowledge=0.1)
        num_links.append(draw.topology.num_links)
    assert num_links == [N] * 10 + [0] * quiet + [N * (N - 1)]


def test_an_introduction_merges_nothing():
    draw, _ = play(AT_ONCE, AT_ONCE.init(N), 0)
    assert draw.topology.num_links == N * (N - 1)
    np.testing.assert_array_equal(draw.mixing_matrix, np.eye(N))


def test_who_is_away_is_not_introduced_and_who_did_not_report_is_not_either():
    active = np.arange(N) != 5
    draw, state = play(AT_ONCE, AT_ONCE.init(N), 0, context_at(0, active=active), missing=(4, 5))
    assert draw.topology.num_links == 5 * 4
    assert state.is_introduced.tolist() == [True] * 4 + [False] * 2


def test_a_server_that_comes_later_is_introduced_when_it_knows_enough():
    active = np.arange(N) != 5
    _, state = play(AT_ONCE, AT_ONCE.init(N), 0, context_at(0, active=active), harm=HARM, missing=(5,))
    knowledge = np.array([0.8] * 5 + [0.3])
    draw, state = play(AT_ONCE, state, 1, harm=HARM, knowledge=knowledge)
    assert not draw.topology.links[5].any()
    assert not draw.topology.links[:, 5].any()
    _, state = play(AT_ONCE, state, 2, harm=HARM, knowledge=0.8)
    draw, state = play(AT_ONCE, state, 3, harm=HARM)
    assert draw.topology.links[5, :5].all()
    assert draw.topology.links[:5, 5].all()
    assert not draw.mixing_matrix[5, :5].any()
    assert not draw.mixing_matrix[:5, 5].any()
    assert state.is_introduced.all()


def test_harm_below_the_bar_is_a_good_verdict_and_above_it_a_bad_one():
    """Of a bar of 0.5: none is as good as it gets, and twice the bar is as bad."""
    harm = np.array([[0, 0.5, 0.0], [1.0, 0, 5.0], [0.25, -3.0, 0]])
    _, state = play(AT_ONCE, AT_ONCE.init(3), 0, context_at(0, 3), harm=harm)
    verdict = LinkTable.all_of(3).to_dense(state.verdict)
    best = verdict[0, 2]
    assert 0 < best <= 1
    np.testing.assert_allclose(verdict / best, [[0, 0, 1], [-1, 0, -1], [0.5, 1, 0]])
    assert state.is_known.all()


def test_after_verdicts_that_separate_them_links_are_drawn_inside_groups_only():
    state = acquainted()
    for t in range(1, 15):
        draw, state = play(AT_ONCE, state, t, harm=HARM)
        assert draw.topology.num_links == N
        assert not (draw.topology.links & APART).any()
        np.testing.assert_array_equal(draw.mixing_matrix > 0, draw.topology.links | np.eye(N, dtype=bool))


def test_the_finish_has_exactly_the_links_inside_groups():
    context = context_at(K - 1)
    finish = AT_ONCE.finish(acquainted(), context)
    np.testing.assert_array_equal(context.links.to_dense(finish), TOGETHER)


def test_strangers_take_no_part_in_the_finish():
    state = acquainted()
    state.introductions[0] = 0
    finish = LinkTable.all_of(N).to_dense(AT_ONCE.finish(state, context_at(K - 1)))
    expected = TOGETHER.copy()
    expected[0] = expected[:, 0] = False
    np.testing.assert_array_equal(finish, expected)


def test_cheap_links_are_preferred_among_those_who_trust_each_other():
    prices = np.where(TOGETHER, 2.0, 1.0)  # those who are not trusted would be the cheapest
    prices[0, 2] = prices[2, 4] = prices[4, 0] = 1.5
    context, state = context_at(1, prices=prices), acquainted()
    drawn = [AT_ONCE.propose(state, context, stream(seed, "prices")).topology.links for seed in range(12)]
    shares = np.mean(drawn, axis=0)
    assert shares[APART].max() == 0
    assert shares[0, 2] > 0.8 > 0.2 > shares[0, 4]
    preference = context.links.to_dense(AT_ONCE.preference(state, context))
    assert preference[0, 2] > preference[0, 4] > preference[APART].max()


def test_little_evidence_is_none():
    state = acquainted(evidence=2.9)
    assert not state.is_known.any()
    assert not state.verdict.any()


def test_good_verdicts_count_in_full_from_half_of_the_median_knowledge_on_and_bad_ones_always():
    knowledge = np.array([0.8, 0.4, 0.2, -0.1, 0.8, 0.9])
    state, table = acquainted(harm=np.zeros((N, N)), knowledge=knowledge), LinkTable.all_of(N)
    verdict = table.to_dense(state.verdict)[:, 5][:5]  # median 0.6
    np.testing.assert_allclose(verdict / verdict[0], [1, 1, 2 / 3, 0, 1])
    state = acquainted(harm=np.ones((N, N)), knowledge=knowledge)
    np.testing.assert_allclose(table.to_dense(state.verdict)[:, 5][:5], -verdict[0])


@pytest.mark.parametrize("knowledge", [0.0, -0.2, 0.01, 1.0])
def test_good_verdicts_of_servers_that_know_equally_much_count_in_full(knowledge):
    weights = weigh_praise(np.full(N, knowledge), np.ones(N, dtype=bool))
    np.testing.assert_array_equal(weights, 1.0)


def test_who_is_away_does_not_count_among_those_who_know_much():
    knowledge, active = np.array([0.1, 0.1, 0.1, 0.9, 0.9, 0.9, 0.9]), np.arange(7) < 4
    np.testing.assert_array_equal(weigh_praise(knowledge, active), 1.0)
    np.testing.assert_array_equal(weigh_praise(knowledge, np.zeros(7, dtype=bool)), 1.0)


def test_the_praise_of_a_server_that_knows_next_to_nothing_gives_it_no_group():
    """All others find its model rather harmful, and it finds theirs much better than its own, as with wrong labels."""
    knowledge = np.where(np.arange(N) == 2, 0.05, 0.8)
    harm = np.zeros((N, N))
    harm[:, 2], harm[2] = 0.6, -0.5
    assert acquainted(harm=harm, knowledge=knowledge).group.tolist() == [0, 0, 1, 0, 0, 0]
    assert len(set(acquainted(harm=harm).group)) == 1


def test_a_new_verdict_counts_as_much_as_memory_leaves_it():
    policy = TrustedLinks(latest=0.0, curiosity=0.0, memory=0.75)
    before, table = acquainted(policy), LinkTable.all_of(N)
    draw, state = play(policy, before, 1, harm=np.full((N, N), 2.0))
    change = table.to_dense(state.verdict) / (table.to_dense(before.verdict) + np.eye(N))
    np.testing.assert_allclose(change[draw.topology.links], 0.75 - 0.25)  # from good to bad
    np.testing.assert_allclose(change[all_links(N) & ~draw.topology.links], 1.0)


def test_hearsay_decides_pairs_without_evidence_of_their_own():
    """Servers 0 and 2, of one group, and 0 and 1, of two, had no labels in common."""
    evidence = np.full((N, N), 10.0)
    for pair in ((0, 2), (2, 0), (0, 1), (1, 0)):
        evidence[pair] = 0.0
    state, table = acquainted(evidence=evidence), LinkTable.all_of(N)
    known = table.to_dense(state.is_known)
    assert not known[0, 2]
    assert not known[0, 1]
    np.testing.assert_array_equal(table.to_dense(find_trust(table, state.group)), TOGETHER)


def settled(policy=AT_ONCE, **told):
    """The same some rounds later, when it is known how much servers usually know; the next round is 6."""
    state = acquainted(policy, **told)
    for t in range(1, 6):
        _, state = play(policy, state, t, **{"harm": HARM, **told})
    return state


def test_a_server_that_knows_less_than_half_of_what_it_usually_does_is_forgotten_and_introduced_again():
    state, table = settled(), LinkTable.all_of(N)
    fallen = np.where(np.arange(N) == 2, 0.3, 0.8)
    _, state = play(AT_ONCE, state, 6, harm=HARM, knowledge=fallen)
    assert state.is_introduced.tolist() == [i != 2 for i in range(N)]
    known = table.to_dense(state.is_known)
    assert not known[2].any()
    assert not known[:, 2].any()
    assert known[np.ix_([0, 1, 3, 4, 5], [0, 1, 3, 4, 5])].sum() == 5 * 4
    moved = np.where(np.arange(N) == 2, 1, GROUP)
    harm = np.where(moved[:, None] == moved, 0.0, 2.0)
    draw, state = play(AT_ONCE, state, 7, harm=harm)  # it learns alone, and then knows its new data
    assert not draw.topology.links[2].any()
    assert not draw.topology.links[:, 2].any()
    draw, state = play(AT_ONCE, state, 8, harm=harm)
    assert draw.topology.links[2].sum() == draw.topology.links[:, 2].sum() == N - 1
    assert draw.mixing_matrix[2, 2] == 1
    together = (moved[:, None] == moved) & all_links(N)
    np.testing.assert_array_equal(table.to_dense(AT_ONCE.finish(state, context_at(9))), together)


@pytest.mark.parametrize("harm", [np.where(all_links(N), 2.0, 0.0), HARM], ids=["a lone one", "one of a group"])
def test_a_server_that_knows_too_little_again_is_introduced_after_a_while_all_the_same(harm):
    _, state = play(AT_ONCE, settled(), 6, harm=HARM, knowledge=np.where(np.arange(N) == 2, 0.3, 0.8))
    heard = []
    for t in range(7, 12):
        draw, state = play(AT_ONCE, state, t, harm=harm, knowledge=np.where(np.arange(N) == 2, 0.3, 0.8))
        heard.append(int(draw.topology.links[2].sum()))
    assert heard[:2] == [0, 0]
    assert heard[2] == N - 1  # a tenth of 20 rounds after its fall


@pytest.mark.parametrize("knowledge", [0.25, 0.5])
def test_a_server_that_never_knew_much_or_falls_by_little_is_not_forgotten(knowledge):
    _, after = play(AT_ONCE, settled(knowledge=knowledge), 6, harm=HARM, knowledge=0.24 if knowledge > 0.3 else -0.4)
    assert after.is_introduced.all()
    assert after.is_known.all()


def test_a_fall_right_after_the_introduction_is_none():
    """The first merges of models that were trained apart cost each server a part of what it knew."""
    _, after = play(AT_ONCE, acquainted(knowledge=0.9), 1, harm=HARM, knowledge=0.2)
    assert after.is_introduced.all()


def test_who_fits_nobody_is_introduced_again_after_a_tenth_of_the_run_and_finds_its_group():
    alone = HARM.copy()
    alone[2] = alone[:, 2] = np.where(np.arange(N) == 2, 0.0, 2.0)
    state = acquainted(harm=alone)
    assert (state.group == state.group[2]).sum() == 1
    heard = []
    for t in range(1, 7):
        draw, state = play(AT_ONCE, state, t, harm=HARM if t >= 3 else alone)
        heard.append(int(draw.topology.links[2].sum()))
    assert heard == [0, 0, N - 1, 1, 1, 1]
    assert state.group.tolist() == GROUP.tolist()


TWICE = TrustedLinks(latest=0.0, curiosity=0.0, again=0.25)  # of 20 rounds


def test_everybody_is_introduced_a_second_time_and_both_verdicts_count():
    state, seen, together = acquainted(TWICE), [], LinkTable.all_of(N).to_dense
    for t in range(1, 12):
        draw, state = play(TWICE, state, t, harm=HARM if t < 6 else None)  # nobody does harm any more
        seen.append(int(draw.topology.num_links))
    assert [t for t, count in enumerate(seen, 1) if count == N * (N - 1)] == [6], "five rounds after the first, once"
    assert (state.introductions == 2).all()
    good, bad = (np.clip(1 - harm / TWICE.bar, -1, 1) * 10 / 15 for harm in (0.0, 2.0))
    np.testing.assert_allclose(together(state.verdict)[APART], (good + bad) / 2)


def test_after_its_data_changed_a_server_begins_anew():
    state = settled(TrustedLinks(latest=0.0, curiosity=0.0, again=0.3))
    _, state = play(TWICE, state, 6, harm=HARM, knowledge=np.where(np.arange(N) == 2, 0.3, 0.8))
    assert state.introductions[2] == 0


def test_in_a_large_fleet_a_server_judges_some_of_the_others_in_an_introduction():
    policy, context = TrustedLinks(latest=0.0, curiosity=0.0, most=5), context_at(0, 30)
    draw, state = play(policy, policy.init(30), 0, context)
    np.testing.assert_array_equal(draw.topology.links.sum(axis=1), 5)
    assert state.is_introduced.all()
    assert (play(policy, policy.init(30), 1, context_at(1, 30))[0].topology.links != draw.topology.links).any()


def test_an_introduction_that_did_not_take_place_is_none():
    """A budget may be too small for it."""
    context = context_at(0)
    draw = silence(context, plans_mixing=True)
    state = AT_ONCE.update(AT_ONCE.init(N), draw, Feedback(reports(draw), np.zeros(len(context.links))), context)
    assert not state.is_introduced.any()


def test_near_the_end_a_fall_is_not_taken_for_changed_data():
    fallen = np.where(np.arange(N) == 2, 0.3, 0.8)
    for t, is_kept in ((17, False), (18, True)):  # of 20 rounds; a tenth of them are left from round 18 on
        _, state = play(AT_ONCE, settled(), t, harm=HARM, knowledge=fallen)
        assert state.is_introduced[2] == is_kept


def test_a_fall_right_after_others_joined_the_group_is_not_taken_for_changed_data():
    apart = HARM.copy()
    apart[2] = apart[:, 2] = np.where(np.arange(N) == 2, 0.0, 2.0)
    state = settled(harm=apart)._replace(waited=np.where(np.arange(N) == 2, 9, 0))
    _, state = play(AT_ONCE, state, 6, harm=HARM)  # server 2 is introduced again, and fits its group
    mates = np.flatnonzero((GROUP[2] == GROUP) & (np.arange(N) != 2))
    assert not state.usual[mates].any()
    assert state.usual[GROUP[2] != GROUP].all()
    _, state = play(AT_ONCE, state, 7, harm=HARM, knowledge=np.where(GROUP[2] == GROUP, 0.2, 0.8))
    assert state.is_introduced.all()


def test_the_pauses_of_who_fits_nobody_double():
    alone = HARM.copy()
    alone[2] = alone[:, 2] = np.where(np.arange(N) == 2, 0.0, 2.0)
    state, met = acquainted(harm=alone), []
    for t in range(1, 18):
        draw, state = play(AT_ONCE, state, t, harm=alone)
        met += [t] if draw.topology.links[2].any() else []
    assert np.diff([0, *met]).tolist() == [3, 5, 9], "after pauses of 2, 4 and 8 rounds"


def test_a_server_whose_data_changed_returns_before_it_knows_as_much_as_the_first_introduction_asks():
    _, state = play(AT_ONCE, settled(), 6, harm=HARM, knowledge=np.where(np.arange(N) == 2, 0.3, 0.8))
    _, state = play(AT_ONCE, state, 7, harm=HARM, knowledge=np.where(np.arange(N) == 2, 0.45, 0.8))
    draw, _ = play(AT_ONCE, state, 8, harm=HARM, knowledge=0.8)
    assert draw.topology.links[2].sum() == N - 1


def test_a_server_that_says_nothing_keeps_what_it_knew():
    _, state = play(AT_ONCE, acquainted(knowledge=0.7), 1, harm=HARM, missing=(3,), knowledge=0.9)
    np.testing.assert_allclose(state.knowledge, [0.9, 0.9, 0.9, 0.7, 0.9, 0.9])
    assert state.is_introduced.all()


def test_the_curious_hear_one_whom_they_do_not_trust_and_only_judge_it():
    policy = TrustedLinks(latest=0.0, curiosity=1.0)
    draw = policy.propose(acquainted(policy), context_at(1), stream(0, "curious"))
    strangers = draw.topology.links & APART
    np.testing.assert_array_equal(strangers.sum(axis=1), 1)
    assert not draw.mixing_matrix[strangers].any()
    np.testing.assert_array_equal(draw.mixing_matrix > 0, (draw.topology.links & TOGETHER) | np.eye(N, dtype=bool))


def test_curiosity_finds_out_who_has_changed():
    policy = TrustedLinks(latest=0.0, curiosity=1.0, memory=0.0)
    state = acquainted(policy)
    for t in range(1, 12):
        _, state = play(policy, state, t)  # nobody does harm any more
    assert state.group.max() == 0


def test_curiosity_is_as_frequent_as_it_says():
    policy = TrustedLinks(latest=0.0, curiosity=0.25, thrift=0.0)
    state, context = acquainted(policy), context_at(1)
    drawn = [policy.propose(state, context, stream(seed, "often")).topology.links & APART for seed in range(200)]
    assert np.sum(drawn) / (200 * N) == pytest.approx(0.25, abs=4 * math.sqrt(0.25 * 0.75 / (200 * N)))


def test_what_is_known_survives_json():
    state = acquainted(knowledge=0.7, evidence=np.where(np.eye(N)[::-1] > 0, 0.0, 10.0))
    again = from_jsonable(json.loads(json.dumps(to_jsonable(state))), AT_ONCE.init(N))
    for before, after in zip(state, again, strict=True):
        assert np.asarray(before).dtype == np.asarray(after).dtype
        np.testing.assert_array_equal(before, after)


def test_after_others_joined_what_was_known_is_known_and_they_are_strangers():
    state = acquainted()
    grown = AT_ONCE.grow(state, N + 2)
    table, old = LinkTable.all_of(N + 2), np.ix_(range(N), range(N))
    for name in ("verdict", "is_known"):
        matrix = table.to_dense(getattr(grown, name))
        np.testing.assert_array_equal(matrix[old], LinkTable.all_of(N).to_dense(getattr(state, name)))
        assert not matrix[N:].any()
        assert not matrix[:, N:].any()
    assert grown.is_known.dtype == bool
    assert grown.is_introduced.tolist() == [True] * N + [False] * 2
    np.testing.assert_array_equal(grown.knowledge, [*state.knowledge, 0, 0])
    draw, grown = play(AT_ONCE, grown, 1, context_at(1, N + 2), knowledge=0.8)
    assert not draw.topology.links[N:].any()
    draw, _ = play(AT_ONCE, grown, 2, context_at(2, N + 2))
    assert draw.topology.links[N:].sum() == 2 * (N + 1)


CANDIDATES = regular_graph(8, 5, stream(0, "candidates of trust"))
SIDES = np.arange(8) % 2
HARM_OF_SIDES = np.where(SIDES[:, None] == SIDES, 0.0, 2.0)


def few_links(t, candidates=CANDIDATES):
    links = LinkTable.of_candidates(candidates)
    context = context_at(t, 8)
    prices = links.from_dense(LinkTable.all_of(8).to_dense(context.prices))
    return context._replace(links=links, prices=prices, reachable=np.ones(len(links), dtype=bool))


def acquainted_candidates():
    state = AT_ONCE.init_for(LinkTable.of_candidates(CANDIDATES))
    return play(AT_ONCE, state, 0, few_links(0), harm=HARM_OF_SIDES)


def test_candidates_are_introduced_to_those_who_consider_them_and_merge_nothing():
    draw, state = acquainted_candidates()
    assert draw.topology.num_links == 8 * 5
    assert not draw.mixing.any()
    assert state.is_known.all()
    assert state.is_introduced.all()


def test_with_candidates_links_are_drawn_to_those_who_are_trusted_only():
    _, state = acquainted_candidates()
    for t in range(1, 8):
        draw, state = play(AT_ONCE, state, t, few_links(t), harm=HARM_OF_SIDES)
        np.testing.assert_array_equal(draw.mixing > 0, draw.drawn)
        assert draw.topology.num_links > 0
        assert (SIDES[draw.topology.pairs[:, 0]] == SIDES[draw.topology.pairs[:, 1]]).all()


def test_candidates_who_are_not_trusted_are_preferred_least():
    _, state = acquainted_candidates()
    context = few_links(1)
    preference, same = AT_ONCE.preference(state, context), SIDES[context.links.receiver] == SIDES[context.links.sender]
    assert 0 < same.sum() < len(same)
    assert preference[same].min() > preference[~same].max()


def test_after_a_swap_what_is_known_about_those_who_stay_is_kept_and_nothing_else():
    _, state = acquainted_candidates()
    swap = swap_candidates(CANDIDATES, AT_ONCE.preference(state, few_links(1)), 2, stream(0, "swap"))
    is_new = (swap.origin < 0).reshape(-1)
    assert 0 < is_new.sum() < len(is_new)
    swapped = AT_ONCE.swap_candidates(state, swap.carry)
    links = LinkTable.of_candidates(swap.candidates)
    same = SIDES[links.receiver] == SIDES[links.sender]
    np.testing.assert_array_equal(np.sign(swapped.verdict[~is_new]), np.where(same, 1, -1)[~is_new])
    assert swapped.is_known[~is_new].all()
    assert not swapped.is_known[is_new].any()
    assert not swapped.verdict[is_new].any()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ready": 1.5}, r"policy\.ready is 1\.5, but must lie between 0 and 1"),
        ({"latest": -0.1}, r"policy\.latest is -0\.1"),
        ({"memory": math.nan}, r"policy\.memory is nan"),
        ({"curiosity": 2.0}, r"policy\.curiosity is 2\.0"),
        ({"again": 1.5}, r"policy\.again is 1\.5"),
        ({"most": 0}, r"policy\.most is 0, but must be at least 1"),
        ({"thrift": -1.0}, r"policy\.thrift is -1\.0"),
        ({"degree": 0}, r"policy\.degree is 0, but must be at least 1"),
        ({"bar": 0.0}, r"policy\.bar is 0\.0, but must be above 0"),
    ],
)
def test_settings_that_cannot_work_are_refused_in_a_sentence(settings, message):
    with pytest.raises(ConfigError, match=message):
        TrustedLinks(**settings)


def believed(before, after, context=None):
    return AT_ONCE.beliefs(before, after, context or context_at(1))


def test_before_the_introduction_every_server_waits_and_nothing_is_believed():
    state = AT_ONCE.init(N)
    beliefs = believed(state, state)
    assert beliefs.state == ("waiting",) * N
    assert beliefs.group.tolist() == [NO_GROUP] * N
    assert np.isnan(beliefs.verdict).all()
    assert beliefs.reason == ("",) * N


def test_the_introduction_is_the_reason_of_the_first_groups():
    after = acquainted()
    beliefs = believed(AT_ONCE.init(N), after)
    assert beliefs.state == ("member",) * N
    assert beliefs.group.tolist() == GROUP.tolist()
    assert beliefs.reason == ("introduced",) * N
    np.testing.assert_array_equal(beliefs.verdict, after.verdict)
    assert believed(after, after).reason == ("",) * N


def test_verdicts_without_evidence_are_unknown():
    evidence = np.full((N, N), 10.0)
    evidence[0, 2] = 0.0
    beliefs = believed(AT_ONCE.init(N), acquainted(evidence=evidence))
    unknown = np.isnan(LinkTable.all_of(N).to_dense(beliefs.verdict))
    assert np.argwhere(unknown).tolist() == [[0, 2]]


def test_a_server_whose_data_changed_waits_in_no_group():
    before = settled()
    _, after = play(AT_ONCE, before, 6, harm=HARM, knowledge=np.where(np.arange(N) == 2, 0.3, 0.8))
    beliefs = believed(before, after, context_at(6))
    assert beliefs.state[2] == "waiting"
    assert beliefs.group[2] == NO_GROUP
    assert beliefs.reason == ("", "", "data changed", "", "", "")


def test_a_server_that_fits_nobody_is_alone_and_its_further_introductions_are_told():
    alone = HARM.copy()
    alone[2] = alone[:, 2] = np.where(np.arange(N) == 2, 0.0, 2.0)
    state, reasons = acquainted(harm=alone), []
    for t in range(1, 5):
        before = state
        _, state = play(AT_ONCE, state, t, harm=alone)
        beliefs = believed(before, state, context_at(t))
        assert beliefs.state == ("member", "member", "alone", "member", "member", "member")
        reasons.append(beliefs.reason[2])
    assert reasons.count("introduced again") == 1
    assert set(reasons) == {"", "introduced again"}


def test_with_candidates_groups_are_found_as_well():
    before = AT_ONCE.init_for(LinkTable.of_candidates(CANDIDATES))
    _, after = acquainted_candidates()
    beliefs = believed(before, after, few_links(1))
    assert beliefs.state == ("member",) * 8
    assert beliefs.group.tolist() == SIDES.tolist()
    assert len(beliefs.verdict) == 8 * 5


def test_a_new_candidate_is_trusted_if_it_belongs_to_the_group():
    _, state = acquainted_candidates()
    swap = swap_candidates(CANDIDATES, AT_ONCE.preference(state, few_links(1)), 3, stream(0, "exchange"))
    state, context = AT_ONCE.swap_candidates(state, swap.carry), few_links(1, swap.candidates)
    is_new, same = (swap.origin < 0).reshape(-1), SIDES[context.links.receiver] == SIDES[context.links.sender]
    assert (is_new & same).any()
    np.testing.assert_array_equal(AT_ONCE.finish(state, context), same)


def test_a_server_that_speaks_well_of_others_but_does_harm_to_them_is_left_out():
    # Server 0 likes the models of servers 2 to 5, for which its own is harmful; server 1 cannot judge it.
    harm, evidence = np.zeros((N, N)), np.full((N, N), 60.0)
    harm[2:, 0] = 0.8
    evidence[[0, 1], [1, 0]] = 0.0
    _, state = play(AT_ONCE, AT_ONCE.init(N), 0, harm=harm, evidence=evidence)
    assert state.group.tolist() == [0, 1, 1, 1, 1, 1]
    context = context_at(1)
    assert not AT_ONCE.finish(state, context)[context.links.at_receivers(np.arange(N)) == 0].any()
    assert not AT_ONCE.finish(state, context)[context.links.at_senders(np.arange(N)) == 0].any()


@pytest.mark.parametrize(
    ("told", "left_out"), [([-0.5], False), ([-0.7], True), ([-0.7, 0.6], False), ([-1.0, -1.0, -1.0, 1.0], True)]
)
def test_a_server_is_left_out_by_what_its_group_says_on_average_and_one_says_little(told, left_out):
    links = LinkTable.all_of(5)
    verdict, is_known = np.zeros(len(links)), np.zeros(len(links), dtype=bool)
    for receiver, value in enumerate(told, start=1):
        place = (links.receiver == receiver) & (links.sender == 0)
        verdict[place], is_known[place] = value, True
    group = leave_out_harmful(links, np.zeros(5, dtype=np.int64), verdict, is_known)
    assert group.tolist() == ([0, 1, 1, 1, 1] if left_out else [0] * 5)


def test_what_other_groups_say_about_a_server_does_not_separate_it_from_its_own():
    links = LinkTable.all_of(4)
    group = np.array([0, 1, 0, 1])
    verdict = np.where(find_trust(links, group), 0.5, -1.0)
    assert leave_out_harmful(links, group, verdict, np.ones(len(links), dtype=bool)).tolist() == group.tolist()


def test_who_has_a_new_group_is_found_whatever_groups_are_called():
    before, after = np.array([0, 0, 1, 1, 2, 3, 3]), np.array([5, 5, 2, 2, 2, 0, 1])
    assert find_new_groups(before, after).tolist() == [False, False, True, True, True, True, True]


def test_a_schedule_passes_on_what_its_policy_believes():
    scheduled, state = Scheduled(AT_ONCE), ScheduleState(acquainted(), 0.0)
    assert scheduled.beliefs(state, state, context_at(1)).state == ("member",) * N
    assert find_beliefs(object(), None, None, context_at(1)) is None  # a policy of a user's own
