"""Reader of numpy's .npy and .npz files that knows numbers only.

Arrays of Python objects are refused by their header: what they hold could run code, and is never looked at. A header
can claim any size, so memory is taken as bytes come.
"""

from __future__ import annotations

import io
import math
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from hatdfed.errors import DataError
from hatdfed.learning.own.pixels import UNREADABLE, WRONG_NUMBERS, UnfitError

CHUNK_BYTES = 1 << 20
MOST_BYTES = 1 << 32  # stops a small file that unpacks to fill the memory
HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def read_npy(source: IO[bytes]) -> NDArray[Any]:
    """The one array of an open .npy file."""
    shape, by_columns, dtype = _read_header(source)
    if dtype.hasobject:
        raise UnfitError(WRONG_NUMBERS, "it holds Python objects, which are never unpacked; numbers were wanted")
    wanted = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or wanted > MOST_BYTES:
        raise UnfitError(
            WRONG_NUMBERS, f"it claims to hold {list(shape)} numbers; 0 to {MOST_BYTES} bytes in all were wanted"
        )
    payload = bytearray()
    while chunk := source.read(min(CHUNK_BYTES, wanted - len(payload))):
        payload += chunk
    if len(payload) < wanted:
        raise UnfitError(UNREADABLE, f"{len(payload)} bytes of data were found, {wanted} were wanted by its header")
    return np.frombuffer(payload, dtype=dtype).reshape(shape, order="F" if by_columns else "C")


def read_npz(path: Path, names: tuple[str, ...]) -> list[NDArray[Any]]:
    """The named arrays of an .npz file."""
    try:
        with zipfile.ZipFile(path) as archive:
            found = {Path(member).stem for member in archive.namelist() if member.endswith(".npy")}
            if missing := [name for name in names if name not in found]:
                raise DataError(
                    f"{path} has no array {missing[0]!r}, but {', '.join(sorted(found)) or 'nothing'}. "
                    "Save it with numpy.savez(file, x=images, y=labels)."
                )
            return [_read_member(path, archive, name) for name in names]
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror or error}). Check the path and its rights.") from error
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise DataError(f"{path} is no sound .npz file ({error}). Save it again with numpy.savez.") from error


def _read_member(path: Path, archive: zipfile.ZipFile, name: str) -> NDArray[Any]:
    try:
        with archive.open(f"{name}.npy") as source:
            return read_npy(source)
    except UnfitError as error:
        raise DataError(
            f"{path} cannot be used, because of its array {name!r}: {error}. Save it again with numpy.savez."
        ) from error


def _read_header(source: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    try:
        version = npy.read_magic(source)
        if version not in HEADERS:
            raise UnfitError(WRONG_NUMBERS, f"its format is {version}, {' or '.join(map(str, HEADERS))} was wanted")
        return HEADERS[version](source)
    except (ValueError, SyntaxError, TypeError, io.UnsupportedOperation) as error:
        raise UnfitError(UNREADABLE, f"it has no sound .npy header ({str(error).splitlines()[0]})") from error
