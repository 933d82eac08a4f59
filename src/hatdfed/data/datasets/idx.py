"""Reader of idx files, the format of MNIST and Fashion-MNIST, plain or compressed with gzip.

A file is a magic number (two zero bytes, the type of the numbers, the number of dimensions), the dimensions as
big-endian 32-bit numbers, and the numbers themselves. Nothing in the header is believed before the bytes that
it promises have been read: a header can claim any size, a file holds what it holds.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import IO, cast

import numpy as np
from numpy.typing import NDArray

from hatdfed.errors import DataError

UNSIGNED_BYTES = 0x08
GZIP_MAGIC = b"\x1f\x8b"
CHUNK_BYTES = 1 << 20
MOST_BYTES = 1 << 30  # twenty times Fashion-MNIST; stops a small file that unpacks to fill the memory


def read_idx(path: Path, *, dimensions: int) -> NDArray[np.uint8]:
    """The array in the file at `path`, which must have this many dimensions and at least one element."""
    try:
        with _open_idx(path) as source:
            return _read_array(source, path, dimensions)
    except EOFError as error:
        raise DataError(
            f"{path} is cut short: {path.stat().st_size} bytes were found, and the compressed data in them do "
            f"not end. {_replace(path)}"
        ) from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path} is not valid gzip data ({error}). {_replace(path)}") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}). Check the path and its rights.") from error


def _open_idx(path: Path) -> IO[bytes]:
    """Open a file for reading; the first bytes, not the name, tell whether it is compressed."""
    with path.open("rb") as source:
        compressed = source.read(len(GZIP_MAGIC)) == GZIP_MAGIC
    return cast(IO[bytes], gzip.open(path, "rb")) if compressed else path.open("rb")


def _read_array(source: IO[bytes], path: Path, dimensions: int) -> NDArray[np.uint8]:
    shape = _read_shape(source, path, dimensions)
    wanted = math.prod(shape)
    if not 0 < wanted <= MOST_BYTES:
        raise DataError(
            f"{path} claims to hold {' × '.join(map(str, shape))} = {wanted} bytes. "
            f"From 1 to {MOST_BYTES} were wanted. {_replace(path)}"
        )
    payload = _read_at_most(source, wanted + CHUNK_BYTES)
    if len(payload) < wanted:
        raise DataError(
            f"{path} is cut short: {len(payload)} bytes of data were found, {wanted} were wanted by its header. "
            f"{_replace(path)}"
        )
    if len(payload) > wanted:
        found = f"{len(payload)}" if len(payload) < wanted + CHUNK_BYTES else f"at least {len(payload)}"
        raise DataError(
            f"{path} goes on after its end: {found} bytes of data were found, {wanted} were wanted by its header. "
            f"{_replace(path)}"
        )
    return np.frombuffer(payload, dtype=np.uint8).reshape(shape)


def _read_shape(source: IO[bytes], path: Path, dimensions: int) -> tuple[int, ...]:
    wanted = bytes([0, 0, UNSIGNED_BYTES, dimensions])
    magic = source.read(4)
    if magic != wanted:
        raise DataError(
            f"{path} is not an idx file of {dimensions}-dimensional bytes: it starts with "
            f"{magic.hex() or 'nothing'}, {wanted.hex()} was wanted. {_replace(path)}"
        )
    sizes = source.read(4 * dimensions)
    if len(sizes) < 4 * dimensions:
        raise DataError(
            f"{path} is cut short: {4 + len(sizes)} bytes of header were found, {4 + 4 * dimensions} were wanted. "
            f"{_replace(path)}"
        )
    return struct.unpack(f">{dimensions}I", sizes)


def _read_at_most(source: IO[bytes], limit: int) -> bytearray:
    """All there is, up to `limit` bytes, without setting aside memory for more than that."""
    payload = bytearray()
    while chunk := source.read(min(CHUNK_BYTES, limit - len(payload))):
        payload += chunk
    return payload


def _replace(path: Path) -> str:
    return f"Replace {path.name} by a fresh copy, or delete it and run again."
