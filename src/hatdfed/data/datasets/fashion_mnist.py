"""Fashion-MNIST: 70,000 greyscale images of clothes, 28×28 pixels, ten classes; read from its official idx files.

An idx file, the format of MNIST too, is a magic number (two zero bytes, the type of the numbers, the number of
dimensions), the dimensions as big-endian 32-bit integers, and the numbers themselves, plain or compressed with gzip.
The header is not trusted before the bytes that it promises have been read: it can claim any size.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO, cast

import numpy as np
from numpy.typing import NDArray

from hatdfed.core.task import CLASSIFICATION, TaskKind
from hatdfed.data.datasets.base import PAPER_NETWORKS, Dataset, DatasetKind, Examples, Progress, make_dataset
from hatdfed.data.datasets.files import Layout, RemoteFile, fetch, find_folder, find_or_download, format_offline_advice
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
    """Load Fashion-MNIST: the first 50,000 for training, the next 10,000 for validation, 10,000 for testing."""
    files = _obtain_files(data_dir, progress)
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
        train=pool.take(slice(0, kept)),
        validation=pool.take(slice(kept, None)),
        test=test,
        task=TaskKind(CLASSIFICATION, NUM_CLASSES),
    )


def locate(data_dir: Path | None = None) -> str | None:
    """Return the folder that Fashion-MNIST would be read from now, or None."""
    return find_folder(LAYOUT, data_dir)


KIND = DatasetKind(
    name="fashion-mnist",
    summary="70,000 pictures of clothes, 28×28 grey, 10 classes; 31 MB to download",
    load=load,
    locate=locate,
    defaults={
        "rounds": 200,
        "images_per_server": 800,
        "validation_images": 1000,
        "network": "paper-cnn",
        "samples_per_round": 60,
        "local_passes": 2,
        # The model size and the joules per sample that the paper reports for its networks.
        "energy": {"model_bits": 47_200_000, "weak_joules_per_sample": 17.33, "strong_joules_per_sample": 8.67},
    },
    priced_networks=PAPER_NETWORKS,
)


def _obtain_files(data_dir: Path | None, progress: Progress | None) -> Mapping[str, Path]:
    def download(folder: Path) -> None:
        for remote in REMOTE_FILES:
            fetch(remote, folder, otherwise=format_offline_advice(LAYOUT), progress=progress)

    return find_or_download(LAYOUT, data_dir, download)


def _read_pair(images_path: Path, labels_path: Path) -> Examples:
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
    return Examples(pixels[:, None], labels.astype(np.int64))


UNSIGNED_BYTES = 0x08
GZIP_MAGIC = b"\x1f\x8b"
CHUNK_BYTES = 1 << 20
MOST_BYTES = 1 << 30  # twenty times Fashion-MNIST; a small compressed file must not fill the memory


def read_idx(path: Path, *, dimensions: int) -> NDArray[np.uint8]:
    """Read the array of an idx file, which must have this many dimensions and at least one element."""
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
        raise DataError(f"{path} cannot be read ({error.strerror}). Check the path and its permissions.") from error


def _open_idx(path: Path) -> IO[bytes]:
    """Open a file for reading; its first bytes, not its name, tell whether it is compressed."""
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
    """Read up to `limit` bytes without allocating memory for more than there are."""
    payload = bytearray()
    while chunk := source.read(min(CHUNK_BYTES, limit - len(payload))):
        payload += chunk
    return payload


def _replace(path: Path) -> str:
    return f"Replace {path.name} by a fresh copy, or delete it and run again."
