"""The reader of idx files believes no header."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hatdfed.data.datasets import fashion_mnist
from hatdfed.data.datasets.fashion_mnist import read_idx
from hatdfed.errors import DataError

ARRAY = np.arange(3 * 4 * 5, dtype=np.uint8).reshape(3, 4, 5)
HEADER = b"\x00\x00\x08\x03" + struct.pack(">3I", 3, 4, 5)
VALID = HEADER + ARRAY.tobytes()


def write(folder: Path, content: bytes, name: str = "images-idx3-ubyte") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def refusal(path: Path, dimensions: int = 3) -> str:
    with pytest.raises(DataError) as caught:
        read_idx(path, dimensions=dimensions)
    return str(caught.value)


def array_or_sentence(path: Path) -> np.ndarray | str:
    try:
        return read_idx(path, dimensions=3)
    except DataError as error:
        return str(error)


@pytest.mark.parametrize("name", ["plain", "packed.gz", "packed-without-the-ending"])
def test_a_valid_file_is_read_plain_or_compressed_whatever_its_name(tmp_path: Path, name: str) -> None:
    content = VALID if name == "plain" else gzip.compress(VALID)
    array = read_idx(write(tmp_path, content, name), dimensions=3)
    assert array.dtype == np.uint8
    np.testing.assert_array_equal(array, ARRAY)


@pytest.mark.parametrize("compressed", [False, True])
def test_a_truncated_file_is_refused_with_the_bytes_found_and_wanted(tmp_path: Path, compressed: bool) -> None:
    content = VALID[:-7]
    path = write(tmp_path, gzip.compress(content) if compressed else content)
    assert refusal(path) == (
        f"{path} is cut short: 53 bytes of data were found, 60 were wanted by its header. "
        "Replace images-idx3-ubyte by a fresh copy, or delete it and run again."
    )


@pytest.mark.parametrize("compressed", [False, True])
def test_bytes_after_the_end_are_refused(tmp_path: Path, compressed: bool) -> None:
    content = VALID + b"xy"
    path = write(tmp_path, gzip.compress(content) if compressed else content)
    assert f"{path} goes on after its end: 62 bytes of data were found, 60 were wanted" in refusal(path)


def test_many_bytes_after_the_end_are_not_all_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fashion_mnist, "CHUNK_BYTES", 16)
    assert "at least 76 bytes of data were found" in refusal(write(tmp_path, VALID + bytes(1000)))


@pytest.mark.parametrize("cut", [12, 40, -1])
def test_a_truncated_gzip_file_is_refused(tmp_path: Path, cut: int) -> None:
    packed = gzip.compress(VALID)
    path = write(tmp_path, packed[:cut], "images.gz")
    sentence = refusal(path)
    assert str(path) in sentence
    assert f"{len(packed[:cut])} bytes were found" in sentence
    assert "Replace images.gz by a fresh copy" in sentence


def test_garbage_after_the_gzip_data_is_refused(tmp_path: Path) -> None:
    assert "is not valid gzip data" in refusal(write(tmp_path, gzip.compress(VALID) + b"garbage"))


def test_spoilt_gzip_data_are_refused(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(VALID))
    packed[-6] ^= 0xFF  # in the checksum of the data
    assert "is not valid gzip data" in refusal(write(tmp_path, bytes(packed)))


@pytest.mark.parametrize(
    ("start", "shown"),
    [
        (b"\x01\x00\x08\x03", "01000803"),  # no idx file
        (b"\x00\x00\x0d\x03", "00000d03"),  # floating point
        (b"\x00\x00\x08\x01", "00000801"),  # labels where images were wanted
        (b"\x00\x00", "0000"),
        (b"", "nothing"),
    ],
)
def test_a_wrong_magic_number_is_refused(tmp_path: Path, start: bytes, shown: str) -> None:
    content = start + HEADER[4:] if len(start) == 4 else start
    assert f"it starts with {shown}, 00000803 was wanted" in refusal(write(tmp_path, content))


def test_a_truncated_header_is_refused(tmp_path: Path) -> None:
    assert "10 bytes of header were found, 16 were wanted" in refusal(write(tmp_path, VALID[:10]))


@pytest.mark.parametrize("shape", [(2**32 - 1,) * 3, (2**31, 2**31, 4), (2**16, 2**16, 2**16)])
def test_a_header_that_claims_a_huge_array_sets_no_memory_aside(tmp_path: Path, shape: tuple[int, ...]) -> None:
    path = write(tmp_path, HEADER[:4] + struct.pack(">3I", *shape) + bytes(100))
    assert "claims to hold" in refusal(path)


def test_a_large_claim_is_compared_with_the_bytes_that_are_there(tmp_path: Path) -> None:
    path = write(tmp_path, HEADER[:4] + struct.pack(">3I", 1000, 1000, 1000) + bytes(100))
    assert "100 bytes of data were found, 1000000000 were wanted" in refusal(path)


def test_an_empty_array_is_refused(tmp_path: Path) -> None:
    assert "claims to hold 0 × 28 × 28 = 0 bytes" in refusal(
        write(tmp_path, HEADER[:4] + struct.pack(">3I", 0, 28, 28))
    )


def test_a_file_that_cannot_be_opened_is_refused(tmp_path: Path) -> None:
    assert "cannot be read (No such file or directory)" in refusal(tmp_path / "missing")


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=80), packed=st.booleans(), prefix=st.integers(0, len(HEADER)))
def test_any_bytes_give_an_array_of_the_right_size_or_a_sentence(
    tmp_path: Path, content: bytes, packed: bool, prefix: int
) -> None:
    whole = HEADER[:prefix] + content
    path = write(tmp_path, gzip.compress(whole) if packed else whole)
    outcome = array_or_sentence(path)
    if isinstance(outcome, str):
        assert str(path) in outcome
    else:
        assert outcome.size == len(whole) - len(HEADER)
