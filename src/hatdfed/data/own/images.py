"""A server's own images: read from files and arrays, checked, and labelled.

.npy, .npz, .pgm and .ppm files are read directly, .png and .jpg files by Pillow if it is installed.
"""

from __future__ import annotations

import hashlib
import io
import math
import re
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from tokenize import TokenError
from typing import IO, Any, NamedTuple, Protocol

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from hatdfed.data.datasets.base import Examples, SampleFormat
from hatdfed.data.own.checks import check_alike, make_examples
from hatdfed.errors import DataError

ImageShape = tuple[int, int, int]  # C, H, W
Pixels = NDArray[np.uint8]

UNREADABLE = "cannot be read or is cut short"
WRONG_SIZE = "wrong size"
WRONG_NUMBERS = "wrong numbers"

AT_START = -1  # the round before the first: images that are available at the start


class OwnSample(NamedTuple):
    """One sample that a server owns, such as a labelled image."""

    name: str  # the same name with other content replaces the sample
    x: NDArray[Any]  # […]
    y: NDArray[Any]  # […] its target; [] a class
    content_hash: float  # in [0, 1), of the content alone: equal samples are held out together, also after a restart


class IncomingSamples(Protocol):
    """A source of new samples."""

    def new(self, t: int) -> Sequence[OwnSample]:
        """Return the samples since the last call, oldest first; called once with `AT_START`, then once a round."""


class OnceWarner:
    """Issues each kind of warning once."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._issued: set[str] = set()

    def warn_once(self, kind: str, sentence: str) -> None:
        """Warn with the sentence, unless a warning of this kind was issued before."""
        if kind not in self._issued:
            self._issued.add(kind)
            self._warn(sentence)

    def warn_too_many(self, most: int) -> None:
        """Warn that the oldest images were dropped."""
        self.warn_once(
            "too many",
            f"There are more than {most} samples, so the oldest are left out. "
            "Raise max_images if there is memory for more.",
        )


def hash_fraction(content: bytes) -> float:
    """Hash the content to a number in [0, 1), the same on every machine and in every process.

    >>> hash_fraction(b"cat") == hash_fraction(b"cat") != hash_fraction(b"dog")
    True
    """
    # 53 bits are what a float holds exactly, so the result stays below 1.
    return (int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little") >> 11) / 2**53


def make_own_samples(
    x: NDArray[Any], y: NDArray[Any] | None, form: SampleFormat, *, prefix: str, most: int, warner: OnceWarner
) -> list[OwnSample]:
    """Make samples from the last `most` entries of two arrays, the oldest first."""
    x = np.atleast_1d(x)
    if not form.has_images or not form.task.has_classes:
        examples, kind = make_examples(x, y, form.task.name)
        check_alike(examples, kind, form.shape, form.task, form.dtype)
    else:
        if y is None:
            raise UnusableImageError(WRONG_NUMBERS, "there are no labels")
        examples = Examples(x, as_labels(y, count=len(x), num_classes=form.task.num_classes))
    first = max(0, examples.count - most)
    if first:
        warner.warn_too_many(most)
    kept = examples.take(slice(first, None))
    if form.has_images:
        kept = Examples(as_images(kept.x, as_image_shape(form.shape)), kept.y)
    return [
        OwnSample(f"{prefix}{first + i}", sample, target, hash_fraction(sample.tobytes()))
        for i, (sample, target) in enumerate(zip(*kept, strict=True))
    ]


def as_image_shape(shape: tuple[int, ...]) -> ImageShape:
    """Channels, height and width."""
    channels, height, width = shape
    return channels, height, width


class UnusableImageError(DataError):
    """Data that cannot be used as images; cases are counted by `reason`."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


def as_images(x: NDArray[Any], image_shape: ImageShape) -> Pixels:  # -> [n, C, H, W]
    """Convert [n, H, W], [n, C, H, W] or [n, H, W, C] to 8-bit images; floats from 0 to 1 become 0 to 255."""
    channels, height, width = image_shape
    if x.ndim == 4 and x.shape[1:] == image_shape:
        laid = x
    elif x.ndim == 4 and x.shape[1:] == (height, width, channels):
        laid = x.transpose(0, 3, 1, 2)
    elif x.ndim == 3 and channels == 1 and x.shape[1:] == (height, width):
        laid = x[:, None]
    else:
        raise UnusableImageError(
            WRONG_SIZE, f"images of {format_shape(x.shape[1:])} were found, {format_shape(image_shape)} were wanted"
        )
    return np.ascontiguousarray(_as_bytes(laid))


def as_labels(y: NDArray[Any], *, count: int, num_classes: int) -> NDArray[np.int64]:  # -> [n]
    """Check the labels of `count` images, each from 0 to num_classes − 1, and convert them to int64."""
    if y.ndim == 1 and len(y) != count:
        raise UnusableImageError(
            WRONG_NUMBERS, f"x has {count} samples, but y has {len(y)}. Give one target for each sample"
        )
    if y.dtype.kind not in "iu" or y.shape != (count,):
        raise UnusableImageError(
            WRONG_NUMBERS, f"labels are {y.dtype} of shape {list(y.shape)}, integers of shape [{count}] were wanted"
        )
    if count and int(y.min()) == 1 and int(y.max()) == num_classes:
        raise UnusableImageError(
            WRONG_NUMBERS,
            f"labels go from 1 to {num_classes}, but must be numbered from 0. Subtract 1 from all of them",
        )
    if count and not (int(y.min()) >= 0 and int(y.max()) < num_classes):
        raise UnusableImageError(
            WRONG_NUMBERS, f"labels go from {y.min()} to {y.max()}, from 0 to {num_classes - 1} were wanted"
        )
    return y.astype(np.int64)


def format_shape(shape: tuple[int, ...]) -> str:
    """Format a shape as text.

    >>> format_shape((3, 32, 32))
    '3×32×32'
    """
    return "×".join(map(str, shape)) or "no pixels"


def _as_bytes(x: NDArray[Any]) -> Pixels:
    if x.dtype == np.uint8:
        return x
    if x.dtype.kind != "f":
        raise UnusableImageError(WRONG_NUMBERS, f"pixels are {x.dtype}, uint8 or floats from 0 to 1 were wanted")
    if not (is_finite := np.isfinite(x)).all():
        count = int((~is_finite).sum())
        raise UnusableImageError(
            WRONG_NUMBERS, f"{count} pixels are NaN or infinite, the first one in image {np.argwhere(~is_finite)[0][0]}"
        )
    # Floats up to 255 are not accepted: a very dark image would look like 0 to 1.
    if x.size and not (x.min() >= 0 and x.max() <= 1):
        raise UnusableImageError(
            WRONG_NUMBERS,
            f"pixels are floats from {x.min():.4g} to {x.max():.4g}, 0 to 1 were wanted. Divide them, or convert them "
            "to uint8",
        )
    whole: Pixels = np.rint(x * 255).astype(np.uint8)
    return whole


NO_PILLOW = "Pillow is not installed"
UNKNOWN_SUFFIX = "unknown file type"
PILLOW_SUFFIXES = (".png", ".jpg", ".jpeg")
NETPBM_SUFFIXES = (".pgm", ".ppm")
SUFFIXES = (*PILLOW_SUFFIXES, *NETPBM_SUFFIXES, ".npy")

# P5 is grey, P6 is colour; comments may stand between the numbers, one white space ends the header.
_GAP = rb"\s(?:\s|#[^\n]*\n)*"
_NETPBM = re.compile(rb"P([56])" + _GAP + rb"(\d{1,6})" + _GAP + rb"(\d{1,6})" + _GAP + rb"(\d{1,5})\s")
_EIGHT_BIT_MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")


def decode(suffix: str, data: bytes, image_shape: ImageShape) -> Pixels:  # -> [C, H, W]
    """Decode the bytes of an image file with this suffix."""
    if suffix not in SUFFIXES:
        raise UnusableImageError(UNKNOWN_SUFFIX, f"files ending in {', '.join(SUFFIXES)} were wanted")
    if suffix in PILLOW_SUFFIXES:
        array = _with_pillow(data, image_shape)
    elif suffix in NETPBM_SUFFIXES:
        array = _netpbm(data)
    else:
        array = read_npy(io.BytesIO(data))
    image: Pixels = as_images(array[None], image_shape)[0]
    return image


def find_image_shape(suffix: str, data: bytes) -> ImageShape:
    """The shape of the image in these bytes; grey images have one channel, all others three."""
    if suffix in PILLOW_SUFFIXES:
        return _find_pillow_shape(data)
    array = _netpbm(data) if suffix in NETPBM_SUFFIXES else read_npy(io.BytesIO(data))
    if array.ndim == 3 and array.shape[0] not in (1, 3) and array.shape[2] in (1, 3):
        array = array.transpose(2, 0, 1)
    if array.ndim not in (2, 3):
        raise UnusableImageError(WRONG_SIZE, f"an array of {format_shape(array.shape)} was found, an image was wanted")
    channels, height, width = array.shape if array.ndim == 3 else (1, *array.shape)
    return channels, height, width


def _netpbm(data: bytes) -> Pixels:  # -> [H, W] or [H, W, 3]
    header = _NETPBM.match(data)
    if header is None:
        raise UnusableImageError(UNREADABLE, "no binary PGM or PPM header (P5 or P6) was found")
    kind, width, height, brightest = (int(number) for number in header.groups())
    if not 1 <= brightest <= 255:
        raise UnusableImageError(WRONG_NUMBERS, f"its brightest value is {brightest}, 1 to 255 were wanted")
    shape = (height, width) if kind == 5 else (height, width, 3)
    wanted = int(np.prod(shape))
    pixels = np.frombuffer(data[header.end() : header.end() + wanted], dtype=np.uint8)
    if len(pixels) < wanted:
        raise UnusableImageError(
            UNREADABLE, f"{len(pixels)} bytes of pixels were found, {wanted} were wanted by its header"
        )
    if brightest < 255:
        pixels = np.rint(np.minimum(pixels, brightest) * (255 / brightest)).astype(np.uint8)
    return pixels.reshape(shape)


def _with_pillow(data: bytes, image_shape: ImageShape) -> NDArray[Any]:  # -> [H, W] or [H, W, 3]
    try:
        from PIL import Image
    except ImportError as error:
        raise UnusableImageError(NO_PILLOW, "Pillow reads .png and .jpg files") from error
    try:
        # Only two of Pillow's many decoders are allowed, and nothing is decoded before the header's size is checked.
        with Image.open(io.BytesIO(data), formats=("PNG", "JPEG")) as image:
            _check_header(image.size, image.mode, image_shape)
            return np.asarray(image.convert("L" if image_shape[0] == 1 else "RGB"))
    except UnusableImageError:
        raise
    except Exception as error:  # decoders raise many kinds of errors on broken files
        raise UnusableImageError(UNREADABLE, f"Pillow cannot read it ({type(error).__name__})") from error


def _find_pillow_shape(data: bytes) -> ImageShape:
    try:
        from PIL import Image
    except ImportError as error:
        raise UnusableImageError(NO_PILLOW, "Pillow reads .png and .jpg files: pip install pillow") from error
    try:
        with Image.open(io.BytesIO(data), formats=("PNG", "JPEG")) as image:
            return 1 if image.mode in ("1", "L", "LA") else 3, image.height, image.width
    except Exception as error:
        raise UnusableImageError(UNREADABLE, f"Pillow cannot read it ({type(error).__name__})") from error


def _check_header(size: tuple[int, int], mode: str, image_shape: ImageShape) -> None:
    channels, height, width = image_shape
    if size != (width, height) or channels not in (1, 3):
        raise UnusableImageError(
            WRONG_SIZE,
            f"{format_shape(size[::-1])} pixels were found, images of {format_shape(image_shape)} were wanted",
        )
    if mode not in _EIGHT_BIT_MODES:
        raise UnusableImageError(WRONG_NUMBERS, f"its pixels are of Pillow's mode {mode}, 8 bits a channel were wanted")


CHUNK_BYTES = 1 << 20
MOST_BYTES = 1 << 32  # a small compressed file must not fill the memory
MOST_DIMENSIONS = 8
# A header is a Python literal: numpy parses it, and raises whatever its parser does.
_HEADER_ERRORS = (
    ValueError, SyntaxError, TypeError, TokenError, RecursionError, MemoryError, io.UnsupportedOperation
)  # fmt: skip
HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def read_npy(source: IO[bytes]) -> NDArray[Any]:
    """Read the array of an open .npy file."""
    shape, by_columns, dtype = _read_header(source)
    if dtype.hasobject:
        raise UnusableImageError(
            WRONG_NUMBERS, "it holds Python objects, which are never unpickled; numbers were wanted"
        )
    wanted = math.prod(shape) * dtype.itemsize
    # Of an empty array too, the other dimensions count: numpy refuses those that are too large together.
    claimed = math.prod(max(size, 1) for size in shape) * dtype.itemsize
    if min(shape, default=0) < 0 or claimed > MOST_BYTES or len(shape) > MOST_DIMENSIONS:
        raise UnusableImageError(
            WRONG_NUMBERS, f"it claims to hold {list(shape)} numbers; 0 to {MOST_BYTES} bytes in all were wanted"
        )
    payload = bytearray()
    while chunk := source.read(min(CHUNK_BYTES, wanted - len(payload))):
        payload += chunk
    if len(payload) < wanted:
        raise UnusableImageError(
            UNREADABLE, f"{len(payload)} bytes of data were found, {wanted} were wanted by its header"
        )
    return np.frombuffer(payload, dtype=dtype).reshape(shape, order="F" if by_columns else "C")


def read_npz(path: Path, names: tuple[str, ...], optional: tuple[str, ...] = ()) -> dict[str, NDArray[Any]]:
    """Read the named arrays of an .npz file, and the optional ones that it has."""
    try:
        with zipfile.ZipFile(path) as archive:
            found = {Path(member).stem for member in archive.namelist() if member.endswith(".npy")}
            if missing := [name for name in names if name not in found]:
                raise DataError(
                    f"{path} has no array {missing[0]!r}, but {', '.join(sorted(found)) or 'nothing'}. "
                    "Save it with numpy.savez(file, x=samples, y=targets)."
                )
            return {name: _read_member(path, archive, name) for name in (*names, *optional) if name in found}
    except OSError as error:
        raise DataError(
            f"{path} cannot be read ({error.strerror or error}). Check the path and its permissions."
        ) from error
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise DataError(f"{path} is not a valid .npz file ({error}). Save it again with numpy.savez.") from error


def _read_member(path: Path, archive: zipfile.ZipFile, name: str) -> NDArray[Any]:
    try:
        with archive.open(f"{name}.npy") as source:
            return read_npy(source)
    except UnusableImageError as error:
        raise DataError(
            f"{path} cannot be used, because of its array {name!r}: {error}. Save it again with numpy.savez."
        ) from error


def _read_header(source: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    try:
        version = npy.read_magic(source)
        if version not in HEADERS:
            raise UnusableImageError(
                WRONG_NUMBERS, f"its format is {version}, {' or '.join(map(str, HEADERS))} was wanted"
            )
        return HEADERS[version](source)
    except _HEADER_ERRORS as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UnusableImageError(UNREADABLE, f"it has no valid .npy header ({reason:.200})") from error
