"""How long a round takes."""

import numpy as np
import pytest

from hatdfed.core.energy.energy_model import Cause, EnergyRow
from hatdfed.core.timing.machines import Machines, draw_is_weak
from hatdfed.core.timing.round_time import RoundClock
from hatdfed.randomness import stream

NOTHING = np.zeros(3, dtype=np.int64)


def machines(sample_seconds=(1.0, 2.0, 4.0), upload=100.0, uplink=10.0, latency=0.5):
    return Machines(np.array(sample_seconds), np.full(3, upload), np.full(3, uplink), np.full(3, latency))


def upload(server, bits):
    return EnergyRow(0, Cause.UPLOAD, None, server, bits, 1.0)


def link(receiver, sender, bits):
    return EnergyRow(0, Cause.LINK, sender, receiver, bits, 1.0)


def test_a_round_in_which_nothing_happens_takes_no_time():
    time = RoundClock(machines(), 2).measure(NOTHING, None, [])
    assert time.seconds == 0
    assert time.done.tolist() == [0, 0, 0]


def test_training_takes_samples_times_passes_times_the_speed_of_the_machine():
    time = RoundClock(machines(), 2).measure(np.array([5, 5, 1]), None, [])
    assert time.compute.tolist() == [10, 20, 8]
    assert time.seconds == 20
    assert time.waiting.tolist() == [10, 0, 12]


def test_a_plan_may_say_how_many_passes_each_server_makes():
    time = RoundClock(machines(), 2).measure(np.array([5, 5, 5]), np.array([1, 0, 3]), [])
    assert time.compute.tolist() == [5, 0, 60]


def test_training_begins_when_the_devices_have_sent_their_data():
    time = RoundClock(machines(), 1).measure(np.array([1, 1, 1]), None, [upload(0, 300.0), upload(2, 100.0)])
    assert time.upload.tolist() == [3, 0, 1]
    assert time.done.tolist() == [4, 2, 5]


def test_receivers_of_a_model_share_the_uplink_of_its_sender():
    one = RoundClock(machines(), 1).measure(NOTHING, None, [link(1, 0, 20.0)])
    two = RoundClock(machines(), 1).measure(NOTHING, None, [link(1, 0, 20.0), link(2, 0, 20.0)])
    assert one.done.tolist() == [2.5, 2.5, 0]
    assert two.done.tolist() == [4.5, 4.5, 4.5]


def test_a_model_is_sent_once_its_server_has_trained_and_the_receiver_waits_for_it():
    time = RoundClock(machines(), 1).measure(np.array([1, 0, 2]), None, [link(0, 2, 10.0)])
    assert time.done.tolist() == [9.5, 0, 9.5]
    assert time.sending.tolist() == [0, 0, 1]
    assert time.seconds == 9.5


@pytest.mark.parametrize("factor", [0.5, 3.0])
def test_machines_and_links_that_are_faster_by_a_factor_take_a_round_shorter_by_it(factor):
    rows, samples = [upload(1, 50.0), link(1, 0, 20.0), link(0, 2, 20.0)], np.array([3, 1, 2])
    time = RoundClock(machines(), 2).measure(samples, None, rows)
    fast = machines(np.array([1.0, 2.0, 4.0]) / factor, 100.0 * factor, 10.0 * factor, 0.5 / factor)
    assert RoundClock(fast, 2).measure(samples, None, rows).seconds == pytest.approx(time.seconds / factor)


def test_nobody_can_overwrite_the_speed_of_a_machine():
    with pytest.raises(ValueError, match="read-only"):
        machines().sample_seconds[0] = 1


def test_weak_machines_are_those_that_the_price_list_has_always_had():
    np.testing.assert_array_equal(draw_is_weak(7, 20), stream(7, "machines").random(20) < 0.5)


def test_nobody_gets_another_machine_when_servers_join():
    begun = draw_is_weak(3, 6)
    grown = draw_is_weak(3, 40, 6)
    np.testing.assert_array_equal(grown[:6], begun)
    assert grown[6:].any()
    assert not grown[6:].all()
