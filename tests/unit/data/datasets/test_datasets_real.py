"""The real data sets, where they are on this machine; nothing is downloaded here."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from hatdfed.data.datasets import DATASETS, Dataset, load_dataset, speeches

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


def installed(name: str) -> Dataset:
    """A data set that comes in a package, or one that has been downloaded."""
    kind = DATASETS[name]
    if kind.locate(None) is None:
        pytest.skip(f"{name} is not on this machine: {kind.install or f'hatdfed run --dataset {name} downloads it'}")
    return load_dataset(name)


def test_vowels_are_those_of_nine_speakers() -> None:
    dataset = installed("vowels")
    assert dataset.train.x.shape == (2124, 4, 12)
    assert (dataset.validation.count, dataset.test.count) == (530, 3467)
    assert np.bincount(dataset.groups).tolist() == [0, 285, 222, 183, 343, 178, 279, 268, 164, 202]
    assert dataset.task.target_std[0] == pytest.approx(0.497, abs=0.001)


def test_flights_have_fifteen_carriers_and_spend_two_and_a_half_hours_in_the_air() -> None:
    dataset = installed("flights")
    assert dataset.train.x.shape == (204_334, 30)
    assert (dataset.validation.count, dataset.test.count) == (10_845, 13_752)
    assert len(np.unique(dataset.groups)) == 15
    assert dataset.task.target_mean == pytest.approx((150.4,), abs=0.1)
    assert np.corrcoef(dataset.train.x[:, 16], dataset.train.y)[0, 1] > 0.98  # the distance
    assert np.isfinite(dataset.train.x).all()


def test_speeches_are_those_of_43_presidents() -> None:
    dataset = installed("speeches")
    assert dataset.train.x.shape == (268_875, 32)
    assert (dataset.validation.count, dataset.test.count) == (1_117, 1_117)
    assert np.unique(dataset.groups).tolist() == list(range(43))
    first = "".join(speeches.ALPHABET[token] for token in dataset.train.x[0])
    assert first == "fellow-citizens of the senate an"


def test_typefaces_are_twenty_with_36_characters_each() -> None:
    dataset = installed("typefaces")
    assert dataset.train.x.shape == (20_160, 1, 28, 28)
    assert (dataset.validation.count, dataset.test.count) == (4_320, 4_320)
    assert np.bincount(dataset.groups).tolist() == [36 * 28] * 20
    assert dataset.train.x.mean() == pytest.approx(25, abs=3)
