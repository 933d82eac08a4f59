"""The real Fashion-MNIST and CIFAR-10, where they are on this machine; nothing is downloaded here."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from hatdfed.data.datasets import DATASETS, Dataset, load_dataset

DEBIAN_FOLDER = Path("/usr/share/datasets/fashion-mnist")


def real(name: str, *other_folders: Path) -> Dataset:
    named = os.environ.get("HATDFED_DATA")
    folders = [Path(named)] if named else []
    for folder in [*folders, *other_folders]:
        if DATASETS[name].locate(folder):
            return load_dataset(name, data_dir=folder)
    pytest.skip(f"{name} is not on this machine: set HATDFED_DATA to the folder that holds it")


def test_fashion_mnist_is_50000_10000_and_10000_images() -> None:
    dataset = real("fashion-mnist", DEBIAN_FOLDER)
    assert dataset.train.x.shape == (50_000, 1, 28, 28)
    assert (dataset.validation.count, dataset.test.count) == (10_000, 10_000)
    assert dataset.mean == pytest.approx((0.286,), abs=0.002)
    assert dataset.std == pytest.approx((0.353,), abs=0.002)
    assert dataset.train.y[:5].tolist() == [9, 0, 0, 3, 0]
    np.testing.assert_array_equal(np.bincount(dataset.test.y), [1000] * 10)


def test_cifar_10_is_45000_5000_and_10000_images() -> None:
    dataset = real("cifar-10")
    assert dataset.train.x.shape == (45_000, 3, 32, 32)
    assert (dataset.validation.count, dataset.test.count) == (5_000, 10_000)
    assert dataset.mean == pytest.approx((0.4914, 0.4822, 0.4465), abs=0.003)
    assert dataset.std == pytest.approx((0.2470, 0.2435, 0.2616), abs=0.003)
    assert dataset.validation.y.max() == 9
    np.testing.assert_array_equal(np.bincount(dataset.test.y), [1000] * 10)
