"""One image file as an array: .npy, .pgm and .ppm are read directly, .png and .jpg by Pillow if it is there."""

from __future__ import annotations

import io
import math
import re
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from hatdfed.data.own.images import (
    UNREADABLE,
    WRONG_NUMBERS,
    WRONG_SIZE,
    ImageShape,
    Pixels,
    UnfitError,
    as_images,
    in_words,
)
from hatdfed.errors import DataError

NO_PILLOW = "Pillow is not installed"
OTHER_KIND = "no kind of file that we read"
PILLOW_SUFFIXES = (".png", ".jpg", ".jpeg")
NETPBM_SUFFIXES = (".pgm", ".ppm")
SUFFIXES = (*PILLOW_SUFFIXES, *NETPBM_SUFFIXES, ".npy")

# P5 is grey, P6 is colour; comments may stand between the numbers, one white space ends the header.
_GAP = rb"\s(?:\s|#[^\n]*\n)*"
_NETPBM = re.compile(rb"P([56])" + _GAP + rb"(\d{1,6})" + _GAP + rb"(\d{1,6})" + _GAP + rb"(\d{1,5})\s")
_EIGHT_BIT_MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")


def decode(suffix: str, data: bytes, image_shape: ImageShape) -> Pixels:  # -> [C, H, W]
    """The image in the bytes of a file whose name ends like this."""
    if suffix not in SUFFIXES:
        raise UnfitError(OTHER_KIND, f"files ending in {', '.join(SUFFIXES)} were wanted")
    if suffix in PILLOW_SUFFIXES:
        array = _with_pillow(data, image_shape)
    elif suffix in NETPBM_SUFFIXES:
        array = _netpbm(data)
    else:
        array = read_npy(io.BytesIO(data))
    image: Pixels = as_images(array[None], image_shape)[0]
    return image


def _netpbm(data: bytes) -> Pixels:  # -> [H, W] or [H, W, 3]
    header = _NETPBM.match(data)
    if header is None:
        raise UnfitError(UNREADABLE, "no binary PGM or PPM header (P5 or P6) was found")
    kind, width, height, brightest = (int(number) for number in header.groups())
    if not 1 <= brightest <= 255:
        raise UnfitError(WRONG_NUMBERS, f"its brightest value is {brightest}, 1 to 255 were wanted")
    shape = (height, width) if kind == 5 else (height, width, 3)
    wanted = int(np.prod(shape))
    pixels = np.frombuffer(data[header.end() : header.end() + wanted], dtype=np.uint8)
    if len(pixels) < wanted:
        raise UnfitError(UNREADABLE, f"{len(pixels)} bytes of pixels were found, {wanted} were wanted by its header")
    if brightest < 255:
        pixels = np.rint(np.minimum(pixels, brightest) * (255 / brightest)).astype(np.uint8)
    return pixels.reshape(shape)


def _with_pillow(data: bytes, image_shape: ImageShape) -> NDArray[Any]:  # -> [H, W] or [H, W, 3]
    try:
        from PIL import Image
    except ImportError as error:
        raise UnfitError(NO_PILLOW, "Pillow reads .png and .jpg files") from error
    try:
        # Only two of Pillow's many decoders may see the bytes, and none before the size in the header is right.
        with Image.open(io.BytesIO(data), formats=("PNG", "JPEG")) as image:
            _check_header(image.size, image.mode, image_shape)
            return np.asarray(image.convert("L" if image_shape[0] == 1 else "RGB"))
    except UnfitError:
        raise
    except Exception as error:  # decoders raise all sorts of things on broken bytes
        raise UnfitError(UNREADABLE, f"Pillow cannot read it ({type(error).__name__})") from error


def _check_header(size: tuple[int, int], mode: str, image_shape: ImageShape) -> None:
    channels, height, width = image_shape
    if size != (width, height) or channels not in (1, 3):
        raise UnfitError(
            WRONG_SIZE, f"{in_words(size[::-1])} pixels were found, images of {in_words(image_shape)} were wanted"
        )
    if mode not in _EIGHT_BIT_MODES:
        raise UnfitError(WRONG_NUMBERS, f"its pixels are of Pillow's mode {mode}, 8 bits a channel were wanted")


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
