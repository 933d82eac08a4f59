"""Traces: any text is read or refused in a sentence, and integrals agree with sums of values."""

import contextlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hatdfed.core.traces import Trace, format_trace, parse_trace
from hatdfed.errors import ConfigError

cells = st.one_of(
    st.floats().map(str), st.integers().map(str), st.sampled_from(["", "nan", "inf", "-0", "1_0", "٣", "#", '"', "0"])
)
headers = st.one_of(
    st.text(max_size=30),
    st.builds(
        "seconds {} {}, {}".format,
        st.sampled_from(["constant", "linear", "cubic"]),
        st.one_of(st.just("once"), cells.map(lambda cell: f"every {cell}")),
        st.sampled_from(["all", "a, b", ""]),
    ),
)
tables = st.builds(
    lambda header, rows: "\n".join([header, *(", ".join(row) for row in rows)]),
    headers,
    st.lists(st.lists(cells, min_size=1, max_size=4), max_size=5),
)


@given(st.one_of(st.text(), tables))
@settings(max_examples=500)
def test_any_text_is_read_as_finite_numbers_or_refused(text):
    with contextlib.suppress(ConfigError):
        trace = parse_trace(text)
        assert np.isfinite(trace.values).all()
        assert (trace.values >= 0).all()
        assert (np.diff(trace.seconds) > 0).all()
        assert np.isfinite(trace.integrate(0.0, 1e6)).all()


@st.composite
def traces(draw):
    gaps = draw(st.lists(st.integers(1, 50), min_size=1, max_size=6))
    seconds = np.cumsum([0, *gaps[:-1]]).astype(float)
    values = draw(st.lists(st.floats(0, 100), min_size=len(gaps), max_size=len(gaps)))
    period = float(sum(gaps)) if draw(st.booleans()) else None
    return Trace(seconds, np.array(values)[:, None], draw(st.booleans()), period)


@given(traces(), st.integers(0, 300), st.integers(0, 300))
@settings(max_examples=200, deadline=None)
def test_the_integral_is_the_sum_of_short_spans(trace, begin, length):
    # Rows lie at whole seconds, so that a line between the ends of a second is what the trace does there.
    tiny = 1e-9
    spans = ((trace.at(s + tiny) + trace.at(s + 1 - tiny)).item() / 2 for s in range(begin, begin + length))
    assert trace.integrate(begin, begin + length).item() == pytest.approx(sum(spans), rel=1e-6, abs=1e-4)


@given(traces(), st.floats(0, 1e5), st.floats(0, 1e5))
def test_a_trace_without_negative_values_has_no_negative_mean(trace, begin, length):
    assert trace.mean(begin, begin + length).item() >= -1e-6


@given(traces())
def test_a_written_trace_is_read_as_the_same(trace):
    again = parse_trace(format_trace(trace, ["all"], []))
    np.testing.assert_array_equal(again.values, trace.values)
    assert again.period == trace.period
