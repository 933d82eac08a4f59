"""CIFAR-10: 60,000 colour photographs, 32×32 pixels, ten classes; read from the official binary version."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hatdfed.core.task import CLASSIFICATION, TaskKind
from hatdfed.data.datasets.base import PAPER_NETWORKS, Dataset, DatasetKind, Examples, Progress, make_dataset
from hatdfed.data.datasets.files import (
    Layout,
    RemoteFile,
    fetch,
    find_folder,
    find_or_download,
    format_offline_advice,
    unpack,
)
from hatdfed.errors import DataError

TRAIN_BATCHES = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
TEST_BATCH = "test_batch.bin"
IMAGE_SHAPE = (3, 32, 32)  # channel by channel
RECORD_BYTES = 1 + 3 * 32 * 32
NUM_CLASSES = 10
OFFICIAL_RECORDS = 10_000  # in each file
VALIDATION_SHARE = 10  # the last tenth of each training file: 1,000 of the official 10,000

LAYOUT = Layout(
    title="CIFAR-10 (the binary version)",
    file_names=(*TRAIN_BATCHES, TEST_BATCH),
    subfolders=("cifar-10-batches-bin",),
)
ARCHIVE = RemoteFile("cifar-10-binary.tar.gz", "https://www.cs.toronto.edu/~kriz/", "c32a1d4ab5d03f1284b67883e8d87530")
_REPLACE = "Replace it by the file from cifar-10-binary.tar.gz (the binary version), or delete it and run again."


def load(data_dir: Path | None = None, progress: Progress | None = None) -> Dataset:
    """Load CIFAR-10: 45,000 images for training, 5,000 for validation, 10,000 for testing."""
    files = find_or_download(LAYOUT, data_dir, lambda folder: _download(folder, progress))
    train, validation = _split(files)
    return make_dataset(
        "cifar-10",
        train=train,
        validation=validation,
        test=read_records(files[TEST_BATCH]),
        task=TaskKind(CLASSIFICATION, NUM_CLASSES),
    )


def locate(data_dir: Path | None = None) -> str | None:
    """Return the folder that CIFAR-10 would be read from now, or None."""
    return find_folder(LAYOUT, data_dir)


KIND = DatasetKind(
    name="cifar-10",
    summary="60,000 photographs, 32×32 colour, 10 classes; 170 MB to download",
    load=load,
    locate=locate,
    defaults={
        "rounds": 200,
        "images_per_server": 800,
        "validation_images": 1000,
        "network": "paper-cnn",
        "samples_per_round": 60,
        "local_passes": 8,
        # The model size and the joules per sample that the paper reports for its networks.
        "energy": {"model_bits": 135_200_000, "weak_joules_per_sample": 60.0, "strong_joules_per_sample": 30.0},
    },
    priced_networks=PAPER_NETWORKS,
)


def _split(files: Mapping[str, Path]) -> tuple[Examples, Examples]:
    """Split off the end of each training file for validation, independently of the seed."""
    train, validation = [], []
    for name in TRAIN_BATCHES:
        batch = read_records(files[name])
        held_back = max(batch.count // VALIDATION_SHARE, 1 if batch.count > 1 else 0)
        kept = batch.count - held_back
        train.append(batch.take(slice(0, kept)))
        validation.append(batch.take(slice(kept, None)))
    if not any(images.count for images in validation):
        raise DataError(
            f"The training files in {files[TRAIN_BATCHES[0]].parent} hold one record each. Two were wanted in at "
            "least one of them, to hold one back for validation. Use the whole files."
        )
    return _concatenate(train), _concatenate(validation)


def _concatenate(parts: list[Examples]) -> Examples:
    pixels = np.concatenate([part.x for part in parts])
    return Examples(pixels, np.concatenate([part.y for part in parts]))


def _download(folder: Path, progress: Progress | None) -> None:
    archive = fetch(ARCHIVE, folder.parent, otherwise=format_offline_advice(LAYOUT), progress=progress)
    members = [f"{LAYOUT.subfolders[0]}/{name}" for name in LAYOUT.file_names]
    unpack(archive, members, folder, member_bytes=OFFICIAL_RECORDS * RECORD_BYTES)
    archive.unlink(missing_ok=True)  # 170 MB that nobody reads again


def read_records(path: Path) -> Examples:
    """Read the images of one file, which must hold at least one record and no partial ones."""
    try:
        size = path.stat().st_size
        _require_whole_records(path, size)
        raw = np.fromfile(path, dtype=np.uint8, count=size)
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}). Check the path and its permissions.") from error
    _require_whole_records(path, raw.size)  # again, in case the file changed meanwhile
    records = raw.reshape(-1, RECORD_BYTES)
    labels = records[:, 0].astype(np.int64)
    _require_known_labels(path, labels)
    return Examples(records[:, 1:].reshape(-1, *IMAGE_SHAPE), labels)


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
