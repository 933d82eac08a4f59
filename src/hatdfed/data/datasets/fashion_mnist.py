"""Fashion-MNIST: 70,000 grey pictures of clothes, 28×28 pixels, ten classes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from hatdfed.data.datasets.base import Dataset, Images, Progress, make_dataset
from hatdfed.data.datasets.download import RemoteFile, fetch
from hatdfed.data.datasets.idx import read_idx
from hatdfed.data.datasets.locate import Layout, find_or_download, offline_advice, whereabouts
from hatdfed.errors import DataError

NUM_CLASSES = 10
SIDE = 28
VALIDATION_SHARE = 6  # the last sixth of the training file: 10,000 of the official 60,000

TRAIN_IMAGES, TRAIN_LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
TEST_IMAGES, TEST_LABELS = "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"

LAYOUT = Layout(
    title="Fashion-MNIST",
    file_names=(TRAIN_IMAGES, TRAIN_LABELS, TEST_IMAGES, TEST_LABELS),
    subfolders=("fashion-mnist", "FashionMNIST/raw"),
    suffixes=("", ".gz"),
    system_folders=(Path("/usr/share/datasets/fashion-mnist"),),  # Debian's dataset-fashion-mnist
    advice=", or on Debian and Ubuntu run `apt install dataset-fashion-mnist`",
)

OFFICIAL_ADDRESS = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
REMOTE_FILES = (
    RemoteFile(f"{TRAIN_IMAGES}.gz", OFFICIAL_ADDRESS, "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
    RemoteFile(f"{TRAIN_LABELS}.gz", OFFICIAL_ADDRESS, "25c81989df183df01b3e8a0aad5dffbe"),
    RemoteFile(f"{TEST_IMAGES}.gz", OFFICIAL_ADDRESS, "bef4ecab320f06d8554ea6380940ec79"),
    RemoteFile(f"{TEST_LABELS}.gz", OFFICIAL_ADDRESS, "bb300cfdad3c16e7a12a480ee83cd310"),
)


def load(data_dir: Path | None = None, progress: Progress | None = None) -> Dataset:
    """Read Fashion-MNIST: the first 50,000 for training, the next 10,000 for validation, 10,000 for testing."""
    files = _files(data_dir, progress)
    pool = _read_pair(files[TRAIN_IMAGES], files[TRAIN_LABELS])
    test = _read_pair(files[TEST_IMAGES], files[TEST_LABELS])
    kept = pool.count - pool.count // VALIDATION_SHARE
    if kept == pool.count:
        raise DataError(
            f"{files[TRAIN_IMAGES]} holds {pool.count} images. At least {VALIDATION_SHARE} were wanted, to hold some "
            "back for validation. Use the whole file."
        )
    return make_dataset(
        "fashion-mnist",
        train=Images(pool.pixels[:kept], pool.labels[:kept]),
        validation=Images(pool.pixels[kept:], pool.labels[kept:]),
        test=test,
        num_classes=NUM_CLASSES,
    )


def locate(data_dir: Path | None = None) -> str | None:
    """The folder that Fashion-MNIST would be read from now, or None."""
    return whereabouts(LAYOUT, data_dir)


def _files(data_dir: Path | None, progress: Progress | None) -> Mapping[str, Path]:
    def download(folder: Path) -> None:
        for remote in REMOTE_FILES:
            fetch(remote, folder, otherwise=offline_advice(LAYOUT), progress=progress)

    return find_or_download(LAYOUT, data_dir, download)


def _read_pair(images_path: Path, labels_path: Path) -> Images:
    pixels = read_idx(images_path, dimensions=3)
    labels = read_idx(labels_path, dimensions=1)
    count, height, width = pixels.shape
    if (height, width) != (SIDE, SIDE):
        raise DataError(
            f"{images_path} holds images of {height}×{width} pixels. Fashion-MNIST has {SIDE}×{SIDE}. "
            "Replace it by the file of Fashion-MNIST."
        )
    if count != len(labels):
        raise DataError(
            f"{images_path} holds {count} images and {labels_path} holds {len(labels)} labels. As many of each were "
            "wanted. Replace both by files of one and the same copy."
        )
    if labels.max() >= NUM_CLASSES:
        raise DataError(
            f"{labels_path} holds the label {labels.max()}. Labels from 0 to {NUM_CLASSES - 1} were wanted. "
            "Replace it by the file of Fashion-MNIST."
        )
    return Images(pixels[:, None], labels.astype(np.int64))
