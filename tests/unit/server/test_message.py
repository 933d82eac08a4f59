import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hatdfed.errors import WireError
from hatdfed.server.message import MAGIC, Message, compute_overhead, pack, unpack


def message(**changes):
    payload = {"model": np.arange(20, dtype=np.float32)}
    return Message("run", 3, 1, 42, 1.0, "float32", payload)._replace(**changes)


def test_a_message_survives_the_wire():
    received = unpack(pack(message(mass=0.1 + 0.2)))
    assert received._replace(payload={}) == message(mass=0.1 + 0.2, payload={})
    np.testing.assert_array_equal(received.payload["model"], np.arange(20, dtype=np.float32))


@given(st.integers(0, 10**6), st.integers(1, 255))
def test_any_flipped_bit_is_refused(position, flip):
    data = bytearray(pack(message()))
    data[position % len(data)] ^= flip
    with pytest.raises(WireError):
        unpack(bytes(data))


@given(st.binary(max_size=300))
def test_noise_is_refused(data):
    with pytest.raises(WireError):
        unpack(data)


@given(st.integers(0, 200))
def test_a_message_cut_short_is_refused(length):
    with pytest.raises(WireError):
        unpack(pack(message())[:length])


def signed(body):
    import hashlib

    return MAGIC + hashlib.sha256(body).digest() + body


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (signed(b"\x80\x04\x95pickle"), "bad-header"),
        (signed(b""), "bad-header"),
        (signed((2**40).to_bytes(8, "little") + b"{}"), "bad-header"),
        (signed((2).to_bytes(8, "little") + b"{}"), "bad-header"),
        (b"HDF2" + b"\0" * 60, "not-a-message"),
    ],
)
def test_forged_messages_are_refused_for_a_counted_reason(data, reason):
    with pytest.raises(WireError) as caught:
        unpack(data)
    assert caught.value.reason == reason


@pytest.mark.parametrize(
    "change", [{"t": -1}, {"sender": -2}, {"num_samples": -5}, {"mass": float("nan")}, {"mass": -1.0}]
)
def test_numbers_out_of_range_are_refused(change):
    with pytest.raises(WireError) as caught:
        unpack(pack(message(**change)))
    assert caught.value.reason == "bad-header"


def test_over_long_messages_are_refused_before_they_are_read():
    with pytest.raises(WireError) as caught:
        unpack(pack(message()), max_bytes=50)
    assert caught.value.reason == "too-long"
    assert unpack(pack(message()), max_bytes=80 + compute_overhead())
