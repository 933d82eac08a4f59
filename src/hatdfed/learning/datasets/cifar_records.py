"""Reader of the binary files of CIFAR-10: records of one label byte and 3,072 pixel bytes, nothing else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hatdfed.errors import DataError
from hatdfed.learning.datasets.base import Images

IMAGE_SHAPE = (3, 32, 32)  # channel by channel
RECORD_BYTES = 1 + 3 * 32 * 32
NUM_CLASSES = 10


def read_records(path: Path) -> Images:
    """The images in one file, which may hold any whole number of records from one up."""
    try:
        size = path.stat().st_size
        _require_whole_records(path, size)
        raw = np.fromfile(path, dtype=np.uint8, count=size)
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}). Check the path and its rights.") from error
    _require_whole_records(path, raw.size)  # what was read, should the file have changed meanwhile
    records = raw.reshape(-1, RECORD_BYTES)
    labels = records[:, 0].astype(np.int64)
    _require_known_labels(path, labels)
    return Images(records[:, 1:].reshape(-1, *IMAGE_SHAPE), labels)


def _require_whole_records(path: Path, size: int) -> None:
    if size == 0 or size % RECORD_BYTES:
        raise DataError(
            f"{path} holds {size} bytes. A whole number of records of {RECORD_BYTES} bytes was wanted, at least one "
            f"({RECORD_BYTES * 10_000} bytes in the official files). {_REPLACE}"
        )


def _require_known_labels(path: Path, labels: NDArray[np.int64]) -> None:
    unknown = np.flatnonzero(labels >= NUM_CLASSES)
    if unknown.size:
        raise DataError(
            f"{path} ({len(labels) * RECORD_BYTES} bytes) has the label {labels[unknown[0]]} in record {unknown[0]}. "
            f"Labels from 0 to {NUM_CLASSES - 1} in records of {RECORD_BYTES} bytes were wanted. {_REPLACE}"
        )


_REPLACE = "Replace it by the file from cifar-10-binary.tar.gz (the binary version), or delete it and run again."
