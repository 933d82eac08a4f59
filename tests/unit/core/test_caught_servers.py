"""Servers whose reports cannot be true: nothing is learned from them, they have no links any more, and this is kept."""

import json
from dataclasses import replace

import numpy as np
import pytest

from hatdfed.core.coordinator import Coordinator, read_state
from hatdfed.core.energy.energy_model import Cause, draw_prices
from hatdfed.core.policies import POLICIES
from hatdfed.core.policies.scheduled import Scheduled
from hatdfed.core.policies.trusted_links import TrustedLinks
from hatdfed.core.report_check import ReportLimits
from hatdfed.core.round import Presence, RoundReport, WorkDone, make_server_report
from hatdfed.core.utility import LinkUtility
from hatdfed.errors import RunFolderError
from hatdfed.jsonable import to_jsonable

N, LIAR = 5, 2
PRICES = draw_prices(
    0, N, num_devices=30, samples_per_device=2, bits_per_sample=512, model_bits=1e6, weak_joules_per_sample=0.5,
    strong_joules_per_sample=0.25, device_kbit_per_joule=1.0, link_kbit_per_joule=(20.0, 50.0),
)  # fmt: skip


def make_boss(policy=None, **more):
    limits = ReportLimits(60, devices=30, probe=16, sent_share=1.001)
    return Coordinator(
        policy or POLICIES["link-bandit"](), LinkUtility(), PRICES, seed=1, horizon=50, budget=8, limits=limits, **more
    )  # fmt: skip


def make_report(plan, lie=False):
    def one(i):
        senders = np.array([i, *plan.draw.topology.senders(i)])
        weights = np.full(len(senders), 1 / len(senders))
        work = WorkDone(30, 15, 30)
        return make_server_report(
            plan, PRICES, i, work, accuracy=0.1 * i, senders=senders, importance=weights, scores={}, compression=1.0
        )

    servers = [one(i) for i in range(N)]
    if lie:
        servers[LIAR] = servers[LIAR]._replace(accuracy=7.0)
    return RoundReport(tuple(servers))


def play(boss, rounds=6, lie_in=1, state=None):
    """States and records of a run in which one server lies once."""
    states, records = [state or boss.start(np.full(N, 0.05))], []
    for _ in range(states[0].t, rounds):
        plan = boss.plan(states[-1])
        state, record = boss.learn(states[-1], plan, make_report(plan, lie=plan.t == lie_in))
        states.append(state)
        records.append(record)
    return states, records


@pytest.mark.parametrize(
    "policy",
    [
        *(POLICIES[name]() for name in ("link-bandit", "random-links", "all-links", "balanced-links")),
        TrustedLinks(latest=0.0, retry=0.0),
    ],
    ids=lambda policy: policy.name,
)
def test_who_is_caught_has_no_links_any_more(policy):
    states, records = play(make_boss(policy))
    assert [(each.server, each.round) for each in states[-1].caught] == [(LIAR, 1)]
    assert [len(record.caught) for record in records] == [0, 1, 0, 0, 0, 0]
    linked = [LIAR in record.draw.topology.pairs for record in records]
    assert not any(linked[2:])
    assert any(record.draw.topology.num_links for record in records[2:])


def test_nothing_is_learned_from_a_false_report_or_from_later_ones():
    boss = make_boss()
    states, records = play(boss)
    assert states[1].accuracy[LIAR] == pytest.approx(0.1 * LIAR)
    assert all(state.accuracy[LIAR] == states[1].accuracy[LIAR] for state in states[1:])
    assert [bool(record.report.reported[LIAR]) for record in records] == [True, *[False] * 5]
    silent = make_boss()
    state = silent.start(np.full(N, 0.05))
    plan = silent.plan(state)
    state, _ = silent.learn(state, plan, make_report(plan))
    plan = silent.plan(state)
    missing = make_report(plan).servers
    missing = RoundReport((*missing[:LIAR], None, *missing[LIAR + 1 :]))
    state, _ = silent.learn(state, plan, missing)
    np.testing.assert_array_equal(states[2].policy.log_weights, state.policy.log_weights)


def test_the_ledger_keeps_what_a_server_spent_that_was_caught():
    _, records = play(make_boss())
    for record in records:
        rows = [row for row in record.report.energy if row.cause is Cause.TRAINING]
        assert sorted(row.receiver for row in rows) == list(range(N))
        assert sum(row.cause is Cause.LINK for row in record.report.energy) == record.draw.topology.num_links


def test_links_of_a_false_report_count_once_towards_a_budget():
    boss = make_boss()
    policy = Scheduled(boss.policy, budget_joules=1e9)
    boss = replace(boss, policy=policy)
    states, records = play(boss, rounds=2)
    spent = sum(row.joules for record in records for row in record.report.energy if row.cause is Cause.LINK)
    assert states[-1].policy.spent == pytest.approx(spent)


def test_a_saved_state_knows_who_was_caught_and_goes_on_likewise():
    boss = make_boss()
    states, records = play(boss)
    kept = json.loads(json.dumps(to_jsonable(states[3])))
    again = read_state(kept, boss.start(np.zeros(N)))
    assert again.caught == states[3].caught
    _, rest = play(boss, state=again)
    assert [one.draw.topology for one in rest] == [one.draw.topology for one in records[3:]]


def test_a_state_from_before_reports_were_checked_is_read():
    boss = make_boss()
    kept = json.loads(json.dumps(to_jsonable(play(boss, lie_in=None)[0][-1])))
    del kept["caught"]
    assert read_state(kept, boss.start(np.zeros(N))).caught == ()


@pytest.mark.parametrize("caught", [3, [3], [{"server": 1}], [{"server": "x", "round": 1, "reason": ""}]])
def test_a_damaged_list_is_refused(caught):
    boss = make_boss()
    kept = to_jsonable(boss.start(np.zeros(N))) | {"caught": caught}
    with pytest.raises(RunFolderError, match="caught"):
        read_state(kept, boss.start(np.zeros(N)))


def test_it_stays_out_on_real_machines_and_when_others_join():
    boss = make_boss(POLICIES["all-links"]())
    states, _ = play(boss)
    here = Presence(np.ones(N, dtype=bool), np.ones(N * (N - 1), dtype=bool))
    plan = boss.plan(states[-1], here)
    assert plan.presence.active.all(), "it takes part, alone"
    assert LIAR not in plan.draw.topology.pairs
    assert plan.draw.topology.num_links == (N - 1) * (N - 2)


def test_a_simulated_server_that_is_away_has_no_samples():
    boss = make_boss(POLICIES["all-links"](), churn=0.6)
    state = boss.start(np.zeros(N))
    away = np.flatnonzero(~boss.context(state).active)
    assert 0 < len(away) < N
    plan = boss.plan(state)
    state, _ = boss.learn(state, plan, make_report(plan))
    assert [each.server for each in state.caught] == away.tolist()
    assert all("at most 0" in each.reason for each in state.caught)
