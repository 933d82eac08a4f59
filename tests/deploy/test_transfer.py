"""Models as streams of frames: any chunks, no more than was agreed upon, nothing that stops or ends too soon."""

import asyncio
import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load, save

from hatdfed.deploy.protocol import hatdfed_pb2 as pb
from hatdfed.deploy.transport.frames import (
    CHUNK_BYTES,
    PART_BYTES,
    IncomingMessage,
    LeastRate,
    collect_chunks,
    describe_message,
    read_header,
    split_into_frames,
)
from hatdfed.errors import WireError
from hatdfed.server.message import MAGIC, Message, pack, pack_parts, pack_tensors, unpack

LIMIT = 10**6


def message(**payload):
    return Message("run", 3, 1, 42, 1.0, "float32", payload)


def collect(stream, size, *, limit=LIMIT, idle_seconds=5.0, least_rate=0.0):
    """What becomes of a stream whose header has no digests, as version 0.1 sends it."""
    incoming = IncomingMessage(pb.Parcel(size=size), limit)
    asyncio.run(collect_chunks(stream, incoming, LeastRate(least_rate, idle_seconds), idle_seconds=idle_seconds))
    return incoming.data


def collected(chunks, size, *, then=None, **more):
    """What becomes of a stream of these chunks; `then` is awaited before it ends."""

    async def stream():
        for chunk in chunks:
            yield pb.Frame(chunk=chunk)
        if then is not None:
            await then()

    return collect(stream(), size, **more)


def refusal(*arguments, **named):
    with pytest.raises(WireError) as caught:
        collected(*arguments, **named)
    return caught.value.reason


@given(st.binary(min_size=1, max_size=400), st.integers(1, 100))
def test_chunks_of_any_size_make_the_same_bytes(data, size):
    chunks = [data[start : start + size] for start in range(0, len(data), size)]
    assert collected(chunks, len(data)) == data


@pytest.mark.parametrize("extra", [-1, 0, 1])
def test_a_message_travels_in_chunks_and_arrives_as_it_was(extra):
    sent = message(model=np.arange(CHUNK_BYTES // 2 + extra, dtype=np.float32))
    parts = pack_parts(sent)
    first, *others = split_into_frames(pb.Parcel(size=sum(map(len, parts))), parts)
    assert max(len(frame.chunk) for frame in others) <= CHUNK_BYTES
    received = unpack(collected([frame.chunk for frame in others], first.parcel.size, limit=10**7))
    np.testing.assert_array_equal(received.payload["model"], sent.payload["model"])


@pytest.mark.parametrize("size", [0, -1, LIMIT + 1, 2**60])
def test_a_size_that_was_not_agreed_upon_is_refused_before_anything_is_read(size):
    assert refusal([b"abc"], size) == "too-long"


@pytest.mark.parametrize(
    ("chunks", "size", "reason"),
    [
        ([b"abc", b"d"], 5, "cut-short"),
        ([], 5, "cut-short"),
        ([b"abc", b"def"], 5, "too-long"),
        ([b"abc", b"", b"de"], 5, "too-long"),
        ([bytes(2**20 + 1)], 2**20 + 1, "too-long"),
    ],
)
def test_streams_that_are_too_short_or_too_long_are_refused(chunks, size, reason):
    assert refusal(chunks, size, limit=2**21) == reason


def test_a_stream_that_stops_is_given_up():
    assert refusal([b"abc"], 5, idle_seconds=0.05, then=lambda: asyncio.sleep(60)) == "stalled"


def test_a_stream_that_moves_may_take_longer_than_it_may_stop():
    async def slow():
        for _ in range(6):
            await asyncio.sleep(0.05)
            yield pb.Frame(chunk=b"a")

    assert collect(slow(), 6, idle_seconds=0.2) == b"aaaaaa"


def test_a_stream_that_drips_is_cut_however_often_it_moves():
    async def drip():
        while True:
            await asyncio.sleep(0.01)
            yield pb.Frame(chunk=b"a")

    with pytest.raises(WireError) as caught:
        collect(drip(), LIMIT, idle_seconds=0.2, least_rate=1000.0)
    assert caught.value.reason == "slow"


def test_a_burst_makes_up_for_a_pause_and_two_pauses_in_a_row_are_too_slow():
    rate = LeastRate(100.0, 2.0)
    rate.count(1.9, 0)
    rate.count(0.1, 1000)
    assert rate.behind == 0.0
    rate.count_stall()
    with pytest.raises(WireError, match="stopped again"):
        rate.count_stall()


PACKED = describe_message([b"a" * 40, bytes(2 * PART_BYTES), b"b" * 1000])
WHOLE = b"".join(PACKED.parts)


def frames_from(offset):
    header = PACKED.make_header("run", 3, 1, offset=offset)
    return [frame.chunk for frame in split_into_frames(header, PACKED.parts)][1:]


@given(st.integers(0, len(WHOLE)))
def test_a_message_goes_on_from_any_byte(offset):
    incoming = IncomingMessage(PACKED.make_header("run", 3, 1), 10**7)
    sent = b""
    for chunk in frames_from(0):
        incoming.add(chunk[: max(0, offset - len(sent))] or b"") if len(sent) < offset else None
        sent += chunk
    assert incoming.filled == offset
    for chunk in frames_from(offset):
        incoming.add(chunk)
    assert incoming.is_complete
    assert incoming.data == WHOLE


def test_of_a_damaged_part_nothing_is_kept_and_the_parts_before_it_stay():
    incoming = IncomingMessage(PACKED.make_header("run", 3, 1), 10**7)
    incoming.add(WHOLE[:PART_BYTES])
    with pytest.raises(WireError) as caught:
        incoming.add(b"x" * PART_BYTES)
    assert (caught.value.reason, incoming.filled) == ("damaged", PART_BYTES)
    incoming.add(WHOLE[PART_BYTES : 2 * PART_BYTES])
    incoming.add(WHOLE[2 * PART_BYTES :])
    assert incoming.data == WHOLE


@pytest.mark.parametrize("change", [{"part_bytes": 0}, {"part_bytes": 1}, {"part_digests": b""}, {"digest": b"x"}])
def test_digests_that_do_not_fit_are_refused_before_memory_is_taken(change):
    header = PACKED.make_header("run", 3, 1)
    for name, value in change.items():
        setattr(header, name, value)
    with pytest.raises(WireError) as caught:
        IncomingMessage(header, 10**7)
    assert caught.value.reason == "bad-header"


@pytest.mark.parametrize("opening", [[], [pb.Frame(chunk=b"abc")], [pb.Frame()]])
def test_a_transfer_says_first_what_it_is(opening):
    async def stream():
        for frame in opening:
            yield frame

    with pytest.raises(WireError) as caught:
        asyncio.run(read_header(stream(), 5.0))
    assert caught.value.reason == "not-a-message"


def test_what_is_received_is_not_copied():
    data = bytearray(pack(message(model=np.arange(50, dtype=np.float32))))
    model = unpack(data).payload["model"]
    assert np.shares_memory(model, np.frombuffer(data, np.uint8))
    assert model.flags.aligned
    assert model.flags.writeable


def test_what_is_sent_is_not_copied():
    model = np.arange(50, dtype=np.float32)
    assert any(np.shares_memory(np.frombuffer(part, np.uint8), model) for part in pack_parts(message(model=model)))


def test_messages_are_what_the_library_of_the_format_reads_and_writes():
    tensors = {
        "model": np.arange(6, dtype=np.int8).reshape(2, 3),
        "scale": np.array([0.5, 2.0], dtype=np.float32),
        "place": np.array([3], dtype=np.int32),
        "none": np.zeros(0, dtype=np.float64),
    }
    for found in (load(b"".join(pack_tensors(tensors, {"a": "b"}))), unpack(with_header(tensors)).payload):
        assert found.keys() == tensors.keys()
        for name, array in tensors.items():
            np.testing.assert_array_equal(found[name], array)
            assert found[name].dtype == array.dtype


def with_header(tensors):
    about = {"run": "r", "round": "0", "sender": "0", "num_samples": "1", "mass": "1.0", "codec": "c"}
    return signed(save(tensors, metadata=about))


def signed(body):
    return MAGIC + hashlib.sha256(body).digest() + body


def forged(text, data=b"\0" * 8):
    """A message whose digest is right and whose tensors are described by `text`."""
    about = '{"run":"r","round":"0","sender":"0","num_samples":"1","mass":"1.0","codec":"c"}'
    header = f'{{"__metadata__":{about}{text}}}'.encode()
    return signed(len(header).to_bytes(8, "little") + header + data)


@pytest.mark.parametrize(
    "text",
    [
        ',"m":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}',
        ',"m":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}',
        ',"m":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}',
        ',"m":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}',
        ',"m":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}',
        ',"m":{"dtype":"F32","shape":[true,2],"data_offsets":[0,8]}',
        ',"m":{"dtype":"F32","shape":[0,99999999999999999999],"data_offsets":[0,0]}',
        ',"m":{"dtype":"object","shape":[1],"data_offsets":[0,8]}',
        ',"m":{"dtype":["F32"],"shape":[2],"data_offsets":[0,8]}',
        ',"m":{"dtype":"F32","shape":[2],"data_offsets":[0]}',
        ',"m":{"dtype":"F32","shape":[2]}',
        ',"m":[1,2,3]',
        ',"m":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"n":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}',
        ',"m":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"n":{"dtype":"I8","shape":[3],"data_offsets":[5,8]}',
        "",
    ],
)
def test_tensors_that_lie_elsewhere_than_they_say_are_refused(text):
    with pytest.raises(WireError) as caught:
        unpack(bytearray(forged(text)))
    assert caught.value.reason == "not-a-message"


@pytest.mark.parametrize("value", ["Infinity", "1e999", '{"a":1}', "[" * 30000 + "]" * 30000])
def test_header_fields_that_are_no_numbers_are_refused(value):
    header = f'{{"__metadata__":{{"run":"r","round":{value},"sender":"0"}}}}'.encode()
    with pytest.raises(WireError) as caught:
        unpack(signed(len(header).to_bytes(8, "little") + header))
    assert caught.value.reason == "bad-header"


@pytest.mark.parametrize("about", ['"run":["r"],"codec":"c"', '"run":"r","codec":{}', '"run":null,"codec":"c"'])
def test_header_fields_that_are_no_texts_are_refused(about):
    header = f'{{"__metadata__":{{{about},"round":"0","sender":"0","num_samples":"1","mass":"1.0"}}}}'.encode()
    with pytest.raises(WireError) as caught:
        unpack(signed(len(header).to_bytes(8, "little") + header))
    assert caught.value.reason == "bad-header"
