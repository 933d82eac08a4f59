"""Sums of counters and integrals of sensors, whatever happens between two samples."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hatdfed.errors import EnergyMeterError
from hatdfed.meters.gauges import MOST_WATTS, Counter, CounterGauge, PowerGauge, Sensor

END = 1000.0


def play_counter(values, *, seconds=0.1, end=END):
    """A window in which a counter shows these values."""
    shown = iter(values)
    gauge = CounterGauge("rapl", [Counter("package-0", lambda: next(shown), end)], refresh_seconds=0.001)
    for number in range(len(values)):
        gauge.sample(number * seconds)
    return gauge.read()


def test_a_counter_that_wraps_around_loses_nothing():
    assert play_counter([900.0, 980.0, 20.0, 60.0]).gross_joules == pytest.approx(160.0)


@given(
    steps=st.lists(st.floats(0, 0.99 * MOST_WATTS * 0.1), min_size=1, max_size=40),
    first=st.floats(0, 0.999 * END),
)
def test_any_number_of_wraps_gives_the_energy_that_was_spent(steps, first):
    values = [first]
    for step in steps:
        values.append((values[-1] + step) % END)
    assert play_counter(values).gross_joules == pytest.approx(sum(steps), abs=1e-6)


@pytest.mark.parametrize("values", [[900.0, 0.0], [50.0, 40.0], [0.0, 500.0]])
def test_a_counter_that_was_reset_is_refused(values):
    """Were it a wrap, more than any processor draws would have been spent."""
    with pytest.raises(EnergyMeterError, match=r"package-0 went from .* reset it"):
        play_counter(values, seconds=0.02)


def test_a_counter_without_an_end_only_goes_up():
    with pytest.raises(EnergyMeterError, match="reset"):
        play_counter([10.0, 9.0], end=None)
    assert play_counter([10.0, 12.0], end=None).gross_joules == 2.0


def test_a_window_in_which_a_counter_may_have_wrapped_twice_is_refused():
    with pytest.raises(EnergyMeterError, match="not read for 60 s, in which it may have begun again more than once"):
        play_counter([10.0, 20.0], seconds=60)


def test_the_uncertainty_of_a_counter_is_what_is_spent_between_two_of_its_values():
    reading = play_counter([0.0, 10.0, 20.0], seconds=0.1)  # 100 W
    assert reading.uncertainty == pytest.approx(2 * 0.001 * 100)
    assert reading.seconds == pytest.approx(0.2)


def play_power(watts, *, seconds=0.5, accuracy=0.0):
    shown = iter(watts)
    gauge = PowerGauge("hwmon", [Sensor("VDD_IN", lambda: next(shown))], accuracy)
    for number in range(len(watts)):
        gauge.sample(number * seconds)
    return gauge.read()


def test_power_is_integrated_by_the_trapezoidal_rule():
    reading = play_power([4.0, 8.0, 8.0])
    assert reading.gross_joules == pytest.approx(0.5 * 6 + 0.5 * 8)
    assert reading.uncertainty == pytest.approx(0.5 * 2)


@given(watts=st.lists(st.floats(0, 100), min_size=2, max_size=30))
def test_the_uncertainty_covers_any_power_between_two_samples(watts):
    reading = play_power(watts)
    least = sum(0.5 * min(pair) for pair in pairwise(watts))
    most = sum(0.5 * max(pair) for pair in pairwise(watts))
    assert reading.gross_joules - reading.uncertainty == pytest.approx(least, abs=1e-6)
    assert reading.gross_joules + reading.uncertainty == pytest.approx(most, abs=1e-6)


@pytest.mark.parametrize("watts", [-1.0, float("nan"), 1e6])
def test_a_power_that_cannot_be_is_refused(watts):
    with pytest.raises(EnergyMeterError, match="VDD_IN says"):
        play_power([watts, watts])
