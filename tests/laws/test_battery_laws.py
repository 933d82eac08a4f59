"""Batteries: whatever their size, harvest and policy, nobody spends what it does not have."""

import json

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hatdfed.core.coordinator import Coordinator, read_state
from hatdfed.core.energy.energy_model import Cause, draw_prices
from hatdfed.core.energy.supply import Batteries, Supply, own_joules
from hatdfed.core.energy.upkeep import Upkeep
from hatdfed.core.policies import POLICIES
from hatdfed.core.report_check import ReportLimits
from hatdfed.core.round import Away, RoundReport, WorkDone, make_server_report
from hatdfed.core.timing.machines import Machines
from hatdfed.core.timing.round_time import RoundClock
from hatdfed.core.traces import Trace
from hatdfed.core.training import TRAINING
from hatdfed.core.utility import LinkUtility
from hatdfed.jsonable import to_jsonable
from hatdfed.randomness import stream

N, ROUNDS, MOST_SAMPLES = 5, 8, 60
# A round costs a server 15 to 30 J for training and 20 to 50 J for each of at most four links, so that these are too
# little at times and enough at others.
NAMES = sorted(set(POLICIES.built_in) - {"known-groups"})
joules = st.floats(0, 800)
watts = st.floats(0, 20)


@st.composite
def supplies(draw):
    def each(values):
        return np.array(draw(st.lists(values, min_size=N, max_size=N)))

    capacity = each(st.one_of(joules, st.just(np.inf)))
    share = draw(st.floats(0, 1))
    first = np.where(np.isinf(capacity), np.inf, share * np.nan_to_num(capacity))
    rows = draw(st.integers(1, 4))
    harvest = Trace(np.arange(0.0, 30.0 * rows, 30.0), np.stack([each(watts) for _ in range(rows)]), period=30.0 * rows)
    there = Trace(np.array([0.0, 35.0]), np.stack([each(st.sampled_from([0.0, 1.0])) for _ in range(2)]), period=70.0)
    upkeep = Upkeep(draw(st.floats(0, 2)), draw(st.floats(0, 2)), each(st.floats(0, 3)))
    return Supply(
        round_seconds=draw(st.one_of(st.none(), st.floats(1, 60))),
        batteries=Batteries(capacity, first, each(st.floats(0, 50)), harvest),
        availability=there if draw(st.booleans()) else None,
        upkeep=upkeep if draw(st.booleans()) else None,
    )


MACHINES = Machines(np.linspace(0.01, 0.4, N), np.full(N, 1e5), np.linspace(1e5, 1e6, N), np.full(N, 0.1))


def make_coordinator(supply, policy, churn=0.0, passes=None, training=None):
    """Training is charged by the sample, or by the sample and pass where there are `passes`."""
    prices = draw_prices(
        0, N, num_devices=30, samples_per_device=2, bits_per_sample=512, model_bits=1e6, weak_joules_per_sample=0.5,
        strong_joules_per_sample=0.25, device_kbit_per_joule=1.0, link_kbit_per_joule=(20.0, 50.0), overhead_bits=1e4,
        local_passes=passes,
    )  # fmt: skip
    return Coordinator(
        POLICIES[policy](), LinkUtility(), prices, seed=1, horizon=ROUNDS, budget=6, churn=churn, supply=supply,
        limits=ReportLimits(samples=MOST_SAMPLES, devices=30), message_share=prices.with_overhead(1.0),
        passes=passes or 1, clock=RoundClock(MACHINES, passes or 1),
        training=None if training is None else TRAINING[training](),
    )  # fmt: skip


def play_round(boss, plan, rng, is_worst):
    """Reports of servers that do what the plan says, up to the most that they can."""

    def one(i):
        does = plan.effort_of(i)
        samples = MOST_SAMPLES if is_worst else int(rng.integers(MOST_SAMPLES + 1))
        if does is not None and not does.passes:
            samples = 0
        senders = np.array([i, *plan.draw.topology.senders(i)])
        work = WorkDone(samples, 30 if samples else 0, samples)
        scores = {name: rng.uniform(0.1, 1, len(senders)) for name in ("loss", "similarity")}
        weights = np.full(len(senders), 1 / len(senders))
        return make_server_report(
            plan, boss.prices, i, work, accuracy=float(rng.random()), senders=senders, importance=weights,
            scores=scores, compression=1.0,
        )  # fmt: skip

    return RoundReport(tuple(one(i) for i in range(N)))


def play(boss, is_worst, seed=0):
    """The state before, the plan, the record and the state after each round."""
    state, rng, played = boss.start(np.zeros(N)), stream(seed, "test"), []
    for _ in range(ROUNDS):
        plan = boss.plan(state)
        after, record = boss.learn(state, plan, play_round(boss, plan, rng, is_worst))
        played.append((state, plan, record, after))
        state = after
    return played


bosses = st.builds(
    make_coordinator,
    supplies(),
    st.sampled_from(NAMES),
    st.sampled_from([0.0, 0.4]),
    st.sampled_from([None, 3]),
    st.sampled_from([None, *TRAINING.built_in]),
)
cases = given(boss=bosses, is_worst=st.booleans())


@settings(max_examples=150, deadline=None)
@cases
def test_no_charge_is_below_zero_or_above_its_capacity(boss, is_worst):
    for before, _, record, after in play(boss, is_worst):
        assert (after.charge >= 0).all()
        assert (after.charge <= boss.supply.batteries.capacity).all()
        # Before the harvest, too, and by the ledger itself: the bound at zero has only rounding errors to take away.
        spent = own_joules(record.report.energy, N)
        assert (before.charge - spent >= -1e-9).all()


@settings(max_examples=150, deadline=None)
@cases
def test_a_round_leaves_the_reserve_to_those_that_take_part(boss, is_worst):
    for before, plan, record, _ in play(boss, is_worst):
        active = np.ones(N, dtype=bool) if plan.presence is None else plan.presence.active
        left = before.charge - own_joules(record.report.energy, N)
        assert (left >= boss.supply.batteries.reserve - 1e-9)[active].all()


@settings(max_examples=150, deadline=None)
@cases
def test_who_is_away_spends_nothing_and_has_no_links(boss, is_worst):
    for _, plan, record, _ in play(boss, is_worst):
        away = set(record.away)
        assert not away & {int(server) for server in plan.draw.topology.pairs.ravel()}
        for server in away:
            assert plan.effort_of(server) == (0, False)
        for row in record.report.energy:
            assert row.joules == 0 or not {row.sender, row.receiver} & away


@settings(max_examples=150, deadline=None)
@cases
def test_a_charge_changes_by_what_the_ledger_and_the_harvest_say(boss, is_worst):
    for before, plan, record, after in play(boss, is_worst):
        batteries = boss.supply.batteries
        harvested = batteries.harvest.integrate(*boss.supply.span(plan.t, before.elapsed, record.time.seconds))
        full = np.minimum(batteries.capacity, before.charge - own_joules(record.report.energy, N) + harvested)
        known = np.isfinite(full)
        np.testing.assert_allclose(after.charge[known], full[known], atol=1e-6)
        assert not any(row.cause is Cause.UPLOAD and row.sender is not None for row in record.report.energy)


@settings(max_examples=50, deadline=None)
@given(supply=supplies(), policy=st.sampled_from(NAMES))
def test_a_state_that_went_through_json_goes_on_in_the_same_way(supply, policy):
    boss = make_coordinator(supply, policy)
    _, _, _, state = play(boss, is_worst=True)[3]
    again = read_state(json.loads(json.dumps(to_jsonable(state))), boss.start(np.zeros(N)))
    np.testing.assert_array_equal(again.charge, state.charge)
    one, other = boss.plan(state), boss.plan(again)
    assert one.draw.topology == other.draw.topology
    assert (one.presence is None) == (other.presence is None)


def test_the_laws_see_batteries_that_are_empty_and_batteries_that_are_not():
    harvest = Trace(np.zeros(1), np.full((1, N), 1.0))
    capacity = np.array([0.0, 150.0, 300.0, 600.0, np.inf])
    batteries = Batteries(capacity, capacity.copy(), np.zeros(N), harvest)
    played = play(make_coordinator(Supply(10.0, batteries), "all-links"), is_worst=True)
    reasons = [record.away for _, _, record, _ in played]
    assert all(each[0] is Away.BATTERY for each in reasons)
    assert any(2 in each for each in reasons)
    assert not all(2 in each for each in reasons)
    assert not any(4 in each for each in reasons)
