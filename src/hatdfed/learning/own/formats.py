"""One image file as an array: .npy, .pgm and .ppm are read directly, .png and .jpg by Pillow if it is there."""

from __future__ import annotations

import io
import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hatdfed.learning.own.npy import read_npy
from hatdfed.learning.own.pixels import (
    UNREADABLE,
    WRONG_NUMBERS,
    WRONG_SIZE,
    ImageShape,
    Pixels,
    UnfitError,
    as_images,
    in_words,
)

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
