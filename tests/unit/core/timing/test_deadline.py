"""Rounds with a deadline: who is late, how long a round takes, and who goes on training."""

import numpy as np
import pytest

from hatdfed.core.energy.energy_model import draw_prices
from hatdfed.core.links import LinkTable
from hatdfed.core.policies.base import certain
from hatdfed.core.round import RoundPlan, WorkDone
from hatdfed.core.timing.deadline import Deadline
from hatdfed.core.timing.machines import Machines
from hatdfed.core.timing.round_time import RoundClock, RoundTime

LINKS = LinkTable.all_of(3)
PRICES = draw_prices(
    0, 3, num_devices=1, samples_per_device=1, bits_per_sample=100, model_bits=10.0, weak_joules_per_sample=1.0,
    strong_joules_per_sample=1.0, device_kbit_per_joule=1.0, link_kbit_per_joule=(1.0, 1.0), charge_samples=True,
)  # fmt: skip
MACHINES = Machines(np.array([1.0, 2.0, 4.0]), np.full(3, 1000.0), np.full(3, 10.0), np.full(3, 0.5))
CLOCK = RoundClock(MACHINES, 1)
WORKS = [WorkDone(10, 1, 10)] * 3  # takes 1 s to upload, and 10, 20 or 40 s to train on


def deadline(seconds):
    return Deadline(seconds, CLOCK, PRICES, 10.0)


def plan(*pairs, busy=None):
    drawn = np.zeros(len(LINKS), dtype=bool)
    drawn[LINKS.places(*np.array(pairs).T)] = True
    return RoundPlan(0, certain(LINKS, drawn), busy=busy)


def test_everybody_who_is_done_before_the_deadline_is_in():
    assert deadline(42.5).find_late(plan((0, 2), (1, 0)), WORKS).tolist() == [False, False]
    assert deadline(42.4).find_late(plan((0, 2), (1, 0)), WORKS).tolist() == [True, False]


def test_a_server_that_has_not_trained_neither_sends_nor_receives():
    late = deadline(30.0).find_late(plan((0, 2), (1, 0), (2, 0)), WORKS)
    assert late.tolist() == [True, False, True]


def test_a_model_that_is_still_under_way_does_not_arrive_but_its_sender_receives():
    late = deadline(22.0).find_late(plan((0, 1), (1, 0)), WORKS)
    assert late.tolist() == [True, False]


def test_a_sender_with_several_receivers_takes_longer():
    late = deadline(12.6).find_late(plan((1, 0)), [WorkDone(10, 1, 10), WorkDone(0, 0, 0), WorkDone(0, 0, 0)])
    both = deadline(12.6).find_late(plan((1, 0), (2, 0)), [WorkDone(10, 1, 10), WorkDone(0, 0, 0), WorkDone(0, 0, 0)])
    assert late.tolist() == [False]
    assert both.tolist() == [True, True]


def test_a_server_that_is_busy_is_ready_later():
    busy = np.array([15.0, 0.0, 0.0])
    assert deadline(23.0).find_late(plan((1, 0)), WORKS).tolist() == [False]
    assert deadline(23.0).find_late(plan((1, 0), busy=busy), WORKS).tolist() == [True]


def time_of(busy, samples=(10, 10, 10)):
    return CLOCK.measure(np.array(samples), None, [PRICES.upload(0, i, 1, n) for i, n in enumerate(samples)], busy)


def test_a_round_ends_with_the_slowest_or_at_the_deadline():
    nobody = np.zeros(3)
    assert deadline(50.0).close_round(0, nobody, time_of(nobody)).seconds == 41.0
    assert deadline(30.0).close_round(0, nobody, time_of(nobody)).seconds == 30.0


def test_nobody_waits_for_a_server_that_is_busy_until_the_deadline():
    busy = np.array([0.0, 0.0, 30.0])
    closed = deadline(30.0).close_round(0, busy, time_of(busy, (10, 10, 0)))
    assert closed.seconds == 21.0
    assert deadline(30.0).next_busy(closed).tolist() == [0, 0, 9]


def test_who_is_late_goes_on_in_the_next_round():
    closed = deadline(15.0).close_round(0, np.zeros(3), time_of(np.zeros(3)))
    assert deadline(15.0).next_busy(closed).tolist() == [0, 6, 26]
    busy = np.array([0.0, 6.0, 26.0])
    assert deadline(15.0).find_training(1, busy).tolist() == [True, False, False]
    assert deadline(15.0).find_exchanging(1, busy).tolist() == [True, True, False]


def test_who_is_done_in_a_later_round_exchanges_models_in_that_one():
    busy, rested = np.array([0.0, 6.0, 0.0]), [WorkDone(10, 1, 10), WorkDone(0, 0, 0), WorkDone(10, 1, 10)]
    assert deadline(15.0).find_late(plan((0, 1), (1, 0), busy=busy), rested).tolist() == [False, False]


def test_links_of_a_busy_server_are_not_drawn():
    possible = deadline(15.0).find_possible(1, np.array([0.0, 6.0, 26.0]), LINKS)
    assert set(zip(LINKS.receiver[possible].tolist(), LINKS.sender[possible].tolist(), strict=True)) == {(0, 1), (1, 0)}


@pytest.mark.parametrize("seconds", [1.0, 13.0, 25.0, 60.0])
def test_a_server_never_trains_more_than_time_has_passed(seconds):
    limit, busy, passed, trained = deadline(seconds), np.zeros(3), 0.0, np.zeros(3)
    for t in range(40):
        samples = np.where(limit.find_training(t, busy), 10, 0)
        time: RoundTime = limit.close_round(t, busy, time_of(busy, samples.tolist()))
        trained, passed = trained + time.upload + time.compute, passed + time.seconds
        busy = limit.next_busy(time)
        assert (trained <= passed + busy + 1e-9).all()
