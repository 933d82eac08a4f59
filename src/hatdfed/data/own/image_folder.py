"""All images of a folder with one sub-folder for each class, at once: what a simulation reads.

`hatdfed.data.own.folder` is for an edge, whose folder fills while it runs.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hatdfed.data.own.folder import list_classes
from hatdfed.data.own.images import (
    MOST_BYTES,
    SUFFIXES,
    ImageShape,
    Pixels,
    UnusableImageError,
    decode,
    find_image_shape,
)
from hatdfed.errors import DataError


def read_image_folder(root: Path) -> tuple[Pixels, NDArray[np.int64]]:  # -> [n, C, H, W], [n]
    """Read all images, in the order of classes and file names; all must have the size of the first one."""
    classes = list_classes(root)
    files = [(path, label) for label, name in enumerate(classes) for path in _list_images(root / name)]
    if not files:
        raise DataError(f"{root} has no images in sub-folders, one for each class. Name a folder that has.")
    shape = _find_shape(files[0][0])
    if len(files) * int(np.prod(shape)) > MOST_BYTES:
        raise DataError(f"{root} has {len(files)} images of {shape}, more than fit. Choose a part of them.")
    pixels = np.stack([_read(path, shape) for path, _ in files])
    return pixels, np.array([label for _, label in files], dtype=np.int64)


def _list_images(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(
        path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES and not path.name.startswith(".")
    )


def _find_shape(path: Path) -> ImageShape:
    try:
        return find_image_shape(path.suffix.lower(), path.read_bytes())
    except (UnusableImageError, OSError) as error:
        raise DataError(f"{path} cannot be used: {error}. Repair or remove it.") from None


def _read(path: Path, shape: ImageShape) -> Pixels:
    try:
        return decode(path.suffix.lower(), path.read_bytes(), shape)
    except (UnusableImageError, OSError) as error:
        raise DataError(f"{path} cannot be used: {error}. Repair or remove it.") from None
