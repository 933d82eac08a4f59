"""Traces: how they are read, and what they say between their rows and after their end."""

import re

import numpy as np
import pytest

from hatdfed.core.traces import Trace, format_trace, parse_trace
from hatdfed.errors import ConfigError

STEPS = "seconds constant every 100, a, b\n0, 1, 10\n40, 3, 30\n"
RAMP = "seconds linear once, all\n0, 0\n10, 20\n30, 0\n"


def test_constant_values_stay_until_the_next_row():
    trace = parse_trace(STEPS)
    assert trace.at(0).tolist() == trace.at(39.9).tolist() == [1, 10]
    assert trace.at(40).tolist() == trace.at(99).tolist() == [3, 30]


def test_a_trace_that_repeats_begins_anew():
    trace = parse_trace(STEPS)
    assert trace.at(100).tolist() == trace.at(700).tolist() == [1, 10]
    assert trace.at(745).tolist() == [3, 30]


def test_linear_values_lie_on_lines_between_rows():
    trace = parse_trace(RAMP)
    assert [trace.at(t).item() for t in (0, 5, 10, 15, 30)] == [0, 10, 20, 15, 0]


def test_a_trace_that_does_not_repeat_keeps_its_last_value():
    assert parse_trace("seconds linear once, all\n0, 1\n10, 4").at(1e9).item() == 4


def test_a_linear_trace_that_repeats_goes_back_to_its_first_value():
    trace = parse_trace("seconds linear every 20, all\n0, 0\n10, 8\n")
    assert [trace.at(t).item() for t in (10, 15, 20)] == [8, 4, 0]


def test_the_integral_is_the_area_under_the_values():
    assert parse_trace(STEPS).integrate(0, 100).tolist() == [220, 2200]
    assert parse_trace(STEPS).integrate(20, 50).tolist() == [50, 500]
    assert parse_trace(STEPS).integrate(90, 320).tolist() == [30 + 440 + 20, 300 + 4400 + 200]
    assert parse_trace(RAMP).integrate(5, 20).item() == pytest.approx(75 + 150)
    assert parse_trace("seconds constant once, all\n0, 2").integrate(10, 60).item() == 100


def test_the_mean_of_no_time_is_the_value():
    assert parse_trace(RAMP).mean(5, 5).item() == 10


def test_comments_and_empty_lines_are_skipped():
    assert parse_trace("# a\n\nseconds constant once, all # b\n0, 1 # c\n").values.tolist() == [[1]]


def test_one_column_is_for_all_servers_and_several_are_for_each():
    assert parse_trace(RAMP).spread(3).at(10).tolist() == [20, 20, 20]
    assert parse_trace(STEPS).spread(2).at(0).tolist() == [1, 10]


def test_a_written_trace_is_read_as_the_same_numbers():
    trace = Trace(np.array([0.0, 1 / 3]), np.array([[0.1, 1e-300], [2 / 3, 7.0]]), is_linear=True, period=86400.5)
    again = parse_trace(format_trace(trace, ["a", "b"], ["why"]))
    np.testing.assert_array_equal(again.seconds, trace.seconds)
    np.testing.assert_array_equal(again.values, trace.values)
    assert (again.is_linear, again.period) == (True, 86400.5)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("# only\n", "is empty"),
        ("time, a\n0, 1", "begins with 'time'"),
        ("seconds, a\n0, 1", "begins with 'seconds'"),
        ("seconds constant every 0, a\n0, 1", "number above 0"),
        ("seconds constant every nan, a\n0, 1", "number above 0"),
        ("seconds constant once\n0", "no column of values"),
        ("seconds constant once, a\n", "no values"),
        ("seconds constant once, a\n5, 1", "begins at second 5"),
        ("seconds constant once, a\n0, 1\n0, 2", "does not go on in time at line 3"),
        ("seconds constant once, a\n0, 1\n9, 2\n8, 2", "does not go on in time at line 4"),
        ("seconds constant every 9, a\n0, 1\n9, 2", "begins anew every 9 seconds"),
        ("seconds constant once, a\n0, nan", "'nan' in line 2"),
        ("seconds constant once, a\n0, 1e999", "'1e999' in line 2"),
        ("seconds constant once, a\n0, x", "'x' in line 2"),
        ("seconds constant once, a\n0, -1", "value -1 in line 2"),
        ("seconds constant once, a, b\n0, 1", "2 values in line 2, but 3 columns"),
    ],
)
def test_what_is_no_trace_is_refused_in_a_sentence(text, said):
    with pytest.raises(ConfigError, match=re.escape(said)):
        parse_trace(text)


def test_a_price_may_be_negative():
    assert parse_trace("seconds constant once, a\n0, -12.5", lowest=-1e15).at(0).item() == -12.5


def test_too_few_columns_for_the_servers_are_refused():
    with pytest.raises(ConfigError, match="2 columns of values, but there are 3 servers"):
        parse_trace(STEPS).spread(3)
