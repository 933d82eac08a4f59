"""Windows on counters that are updated in steps, with a clock that is played."""

import pytest
from tests.unit.meters.fakes import FakeNvml, SteppedNvml

from hatdfed.errors import EnergyMeterError
from hatdfed.meters import updates
from hatdfed.meters.choose import measure_idle
from hatdfed.meters.gauges import Counter, CounterGauge
from hatdfed.meters.nvml import open_nvml
from hatdfed.meters.updates import Watch, observe_rhythm, wait_for_updates

IDLE, WORKING = 80.0, 127.0
MOMENTS = [0.0, 0.13, 0.5, 0.87, 0.99]  # seconds since an update, at which a window is asked for


def open_stepped(nvml):
    meter = open_nvml(nvml=nvml)
    return meter.__class__(nvml, meter.gpus, watch=Watch(nvml.clock, nvml.sleep))


def measure_work(nvml, meter, seconds, watts=WORKING):
    """Work in short steps, as rounds are."""
    window, end = meter.start(), nvml.now + seconds
    while nvml.now < end:
        nvml.spend(min(0.08, end - nvml.now), watts)
    return window.stop()


def measure_unaligned(nvml, seconds):
    """What a counter shows that is read at the beginning and at the end, whenever that is."""
    gauge = CounterGauge("nvml", [Counter("gpu-0", lambda: nvml.millijoules[0] / 1000)], 1.0)
    gauge.sample(nvml.now)
    nvml.spend(seconds, WORKING)
    gauge.sample(nvml.now)
    return gauge.read()


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("seconds", [2.0, 2.4, 3.7])
def test_joules_are_right_whenever_a_window_begins_and_ends(moment, seconds):
    nvml = SteppedNvml(1.0)
    meter = open_stepped(nvml)
    idle = measure_idle(meter, 8.0, nvml.sleep)
    assert idle.gross_watts == pytest.approx(IDLE, rel=0.01)
    nvml.spend(moment, IDLE)
    reading = measure_work(nvml, meter.with_idle(idle.gross_watts), seconds)
    assert reading.seconds == pytest.approx(seconds, abs=0.002)
    assert reading.gross_joules == pytest.approx(WORKING * seconds, rel=0.01)
    assert reading.joules == pytest.approx((WORKING - IDLE) * seconds, rel=0.01)
    assert abs(reading.gross_joules - WORKING * seconds) <= reading.uncertainty < 13.0


def test_without_alignment_the_same_windows_are_off_by_most_of_a_step():
    wrong = []
    for moment in MOMENTS:
        nvml = SteppedNvml(1.0)
        nvml.spend(moment, IDLE)
        reading = measure_unaligned(nvml, 2.4)
        wrong.append((reading.gross_joules - IDLE * 2.4) / ((WORKING - IDLE) * 2.4) - 1)
        assert reading.uncertainty > 150.0
    assert min(wrong) < -0.3
    assert max(wrong) > 0.3


def test_the_uncertainty_of_a_window_of_ten_updates_a_second_is_a_few_joules():
    nvml = SteppedNvml(0.1)
    reading = measure_work(nvml, open_stepped(nvml), 2.03)
    assert reading.gross_joules == pytest.approx(WORKING * 2.03, rel=0.002)
    assert reading.uncertainty < 2.0


@pytest.mark.parametrize("interval", [0.02, 0.1, 1.0])
def test_the_interval_is_observed(interval):
    nvml = SteppedNvml(interval)
    meter = open_stepped(nvml)
    meter.start().stop()
    rhythm = meter.rhythms["gpu-0"]
    assert rhythm.has_steps
    assert rhythm.seconds == pytest.approx(interval, abs=0.002)
    began = nvml.now
    meter.with_idle(80.0).start().stop()
    assert nvml.now - began < 2.2 * interval, "it is not observed again"


def test_two_cards_are_updated_at_different_moments():
    nvml = SteppedNvml(1.0, phases=(0.0, 0.4))
    reading = measure_work(nvml, open_stepped(nvml), 5.3)
    truth = 2 * WORKING * 5.3
    assert abs(reading.gross_joules - truth) <= reading.uncertainty
    assert reading.gross_joules == pytest.approx(truth, rel=0.06), "part of what was before the window is in it"


def test_a_window_within_a_single_step_says_that_it_knows_little():
    nvml = SteppedNvml(1.0)
    reading = measure_work(nvml, open_stepped(nvml), 0.3)
    assert abs(reading.gross_joules - WORKING * 0.3) <= reading.uncertainty
    assert reading.uncertainty > 20.0


def test_nothing_changes_for_a_counter_without_steps():
    nvml = SteppedNvml(1e-5)
    meter = open_stepped(nvml)
    meter.start().stop()
    assert not meter.rhythms["gpu-0"].has_steps
    began = nvml.now
    reading = measure_work(nvml, meter, 2.0)
    assert nvml.now - began == pytest.approx(2.0, abs=0.001), "no update is waited for"
    assert reading.gross_joules == pytest.approx(WORKING * 2.0, rel=0.001)
    assert reading.uncertainty < 1.0


def test_a_counter_that_is_not_updated_is_read_as_it_is(monkeypatch):
    monkeypatch.setattr(updates, "PATIENCE_SECONDS", 0.01)
    nvml = FakeNvml(5_000)
    meter = open_nvml(nvml=nvml)
    counter = Counter("gpu-0", lambda: nvml.millijoules[0])
    assert wait_for_updates([counter], meter.watch) is None
    assert not observe_rhythm(counter, meter.watch).has_steps
    window = meter.start()
    nvml.millijoules = [7_000]
    assert window.stop().gross_joules == pytest.approx(2.0)


def test_a_counter_that_stops_being_updated_gives_what_it_showed():
    nvml = SteppedNvml(1.0)
    window = open_stepped(nvml).start()
    nvml.spend(2.5, WORKING)
    nvml.is_stuck = True
    reading = window.stop()
    assert reading.gross_joules == pytest.approx(2 * WORKING, rel=0.01)
    assert reading.uncertainty > 150.0


def test_a_stepped_counter_that_was_reset_is_refused():
    nvml = SteppedNvml(1.0)
    window = open_stepped(nvml).start()
    nvml.spend(2.0, WORKING)
    nvml.millijoules = [0]
    with pytest.raises(EnergyMeterError, match="reset it"):
        window.stop()
