"""CIFAR-10: 60,000 small colour photographs, 32×32 pixels, ten classes; read from its official binary version."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from hatdfed.errors import DataError
from hatdfed.learning.datasets.base import Dataset, Images, Progress, make_dataset
from hatdfed.learning.datasets.cifar_records import NUM_CLASSES, RECORD_BYTES, read_records
from hatdfed.learning.datasets.download import RemoteFile, fetch
from hatdfed.learning.datasets.locate import Layout, whereabouts
from hatdfed.learning.datasets.obtain import find_or_download, offline_advice
from hatdfed.learning.datasets.unpack import unpack

TRAIN_BATCHES = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
TEST_BATCH = "test_batch.bin"
OFFICIAL_RECORDS = 10_000  # in each file
VALIDATION_SHARE = 10  # the last tenth of each training file: 1,000 of the official 10,000

LAYOUT = Layout(
    title="CIFAR-10 (the binary version)",
    file_names=(*TRAIN_BATCHES, TEST_BATCH),
    subfolders=("cifar-10-batches-bin",),
)
ARCHIVE = RemoteFile("cifar-10-binary.tar.gz", "https://www.cs.toronto.edu/~kriz/", "c32a1d4ab5d03f1284b67883e8d87530")


def load(data_dir: Path | None = None, progress: Progress | None = None) -> Dataset:
    """Read CIFAR-10: 45,000 images for training, 5,000 for validation, 10,000 for testing."""
    files = find_or_download(LAYOUT, data_dir, lambda folder: _download(folder, progress))
    train, validation = _split(files)
    return make_dataset(
        "cifar-10",
        train=train,
        validation=validation,
        test=read_records(files[TEST_BATCH]),
        num_classes=NUM_CLASSES,
    )


def locate(data_dir: Path | None = None) -> str | None:
    """The folder that CIFAR-10 would be read from now, or None."""
    return whereabouts(LAYOUT, data_dir)


def _split(files: Mapping[str, Path]) -> tuple[Images, Images]:
    """Training and validation images: the end of each batch is held back, whatever the seed."""
    train, validation = [], []
    for name in TRAIN_BATCHES:
        batch = read_records(files[name])
        held_back = max(batch.count // VALIDATION_SHARE, 1 if batch.count > 1 else 0)
        kept = batch.count - held_back
        train.append(Images(batch.pixels[:kept], batch.labels[:kept]))
        validation.append(Images(batch.pixels[kept:], batch.labels[kept:]))
    if not any(images.count for images in validation):
        raise DataError(
            f"The training files in {files[TRAIN_BATCHES[0]].parent} hold one record each. Two were wanted in at "
            "least one of them, to hold one back for validation. Use the whole files."
        )
    return _joined(train), _joined(validation)


def _joined(parts: list[Images]) -> Images:
    pixels = np.concatenate([part.pixels for part in parts])
    return Images(pixels, np.concatenate([part.labels for part in parts]))


def _download(folder: Path, progress: Progress | None) -> None:
    archive = fetch(ARCHIVE, folder.parent, otherwise=offline_advice(LAYOUT), progress=progress)
    members = [f"{LAYOUT.subfolders[0]}/{name}" for name in LAYOUT.file_names]
    unpack(archive, members, folder, member_bytes=OFFICIAL_RECORDS * RECORD_BYTES)
    archive.unlink(missing_ok=True)  # 170 MB that nobody reads again
