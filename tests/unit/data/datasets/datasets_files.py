"""Makers of small but valid files of the two data sets that are read from disk."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np

from hatdfed.data.datasets.cifar10 import LAYOUT as CIFAR_LAYOUT
from hatdfed.data.datasets.cifar10 import RECORD_BYTES
from hatdfed.data.datasets.fashion_mnist import LAYOUT as FASHION_LAYOUT


def records(count: int, first: int = 0) -> bytes:
    """Record i has label i mod 10; its first pixels are the number i, so every image can be told apart."""
    raw = np.zeros((count, RECORD_BYTES), np.uint8)
    numbers = np.arange(first, first + count)
    raw[:, 0] = numbers % 10
    raw[:, 1], raw[:, 2] = numbers // 256, numbers % 256
    raw[:, 1 + 1024] = 77  # the first green pixel
    return raw.tobytes()


def numbers_of(pixels: np.ndarray) -> list[int]:
    flat = pixels.reshape(len(pixels), -1).astype(int)
    return (flat[:, 0] * 256 + flat[:, 1]).tolist()


def write_cifar(folder: Path, per_file: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for place, name in enumerate(CIFAR_LAYOUT.file_names):
        (folder / name).write_bytes(records(per_file, first=place * per_file))
    return folder


def images_file(count: int, side: int = 28) -> bytes:
    """Image i has the colour i everywhere."""
    pixels = np.repeat(np.arange(count, dtype=np.uint8), side * side)
    return b"\x00\x00\x08\x03" + struct.pack(">3I", count, side, side) + pixels.tobytes()


def labels_file(count: int, classes: int = 10) -> bytes:
    labels = (np.arange(count) % classes).astype(np.uint8)
    return b"\x00\x00\x08\x01" + struct.pack(">I", count) + labels.tobytes()


def write_fashion(folder: Path, *, train: int = 60, test: int = 12, packed: bool = True) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    contents = (images_file(train), labels_file(train), images_file(test), labels_file(test))
    for name, content in zip(FASHION_LAYOUT.file_names, contents, strict=True):
        path = folder / (f"{name}.gz" if packed else name)
        path.write_bytes(gzip.compress(content) if packed else content)
    return folder
