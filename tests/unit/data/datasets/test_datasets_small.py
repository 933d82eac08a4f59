"""The two data sets that need no files: the same bytes in every process, on every machine."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hatdfed.data.datasets import Dataset, load_dataset
from hatdfed.errors import ConfigError, MissingDependencyError

CHECKSUMS = {
    "digits": "27536ba0e430d2af",
    "synthetic": "0f96cec9e7fd9bfc",
}


def checksum(dataset: Dataset) -> str:
    digest = hashlib.sha256()
    for images in (dataset.train, dataset.validation, dataset.test):
        digest.update(images.x.tobytes())
        digest.update(images.y.tobytes())
    return digest.hexdigest()[:16]


@pytest.mark.parametrize("name", CHECKSUMS)
def test_the_bytes_are_the_pinned_ones(name: str) -> None:
    assert checksum(load_dataset(name)) == CHECKSUMS[name]


def test_another_process_gets_the_same_bytes() -> None:
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); from test_datasets_small import checksum, load_dataset; "
        f"print(*(checksum(load_dataset(name)) for name in {list(CHECKSUMS)}))"
    )
    folder = str(Path(__file__).parent)
    result = subprocess.run([sys.executable, "-c", program, folder], capture_output=True, text=True, check=True)
    assert result.stdout.split() == list(CHECKSUMS.values())


def test_digits_are_split_into_1097_300_and_400_images_that_cover_the_whole() -> None:
    from sklearn.datasets import load_digits

    dataset = load_dataset("digits")
    assert (dataset.train.count, dataset.validation.count, dataset.test.count) == (1097, 300, 400)
    assert dataset.train.x.shape[1:] == (1, 8, 8)
    assert dataset.bits_per_sample == 512
    parts = [images.x.reshape(-1, 64) for images in (dataset.train, dataset.validation, dataset.test)]
    ink, labels = load_digits(return_X_y=True)
    found = sorted(map(bytes, np.concatenate(parts)))
    assert found == sorted(map(bytes, np.rint(ink * 255 / 16).astype(np.uint8)))
    counts = sum(np.bincount(i.y) for i in (dataset.train, dataset.validation, dataset.test))
    np.testing.assert_array_equal(counts, np.bincount(labels))


def test_digits_use_the_whole_range_of_a_byte() -> None:
    pixels = load_dataset("digits").train.x
    assert (int(pixels.min()), int(pixels.max())) == (0, 255)


def test_digits_without_scikit_learn_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'hatdfed\[sim\]'"):
        load_dataset("digits")


def test_synthetic_labels_are_balanced() -> None:
    dataset = load_dataset("synthetic", options={"classes": 7, "train": 100, "validation": 14, "test": 21})
    assert sorted(np.bincount(dataset.train.y)) == [14, 14, 14, 14, 14, 15, 15]
    assert np.bincount(dataset.test.y).tolist() == [3] * 7
    assert dataset.task.num_outputs == 7


def test_synthetic_images_have_the_shape_that_was_asked_for() -> None:
    dataset = load_dataset("synthetic", options={"side": 16, "channels": 3, "train": 50})
    assert dataset.train.x.shape == (50, 3, 16, 16)
    assert (dataset.validation.count, dataset.test.count) == (1000, 1000)
    assert dataset.bits_per_sample == 3 * 16 * 16 * 8


def test_synthetic_splits_share_no_image() -> None:
    dataset = load_dataset("synthetic")
    seen = [set(map(bytes, images.x)) for images in (dataset.train, dataset.validation, dataset.test)]
    assert [len(images) for images in seen] == [4000, 1000, 1000]
    assert len(set.union(*seen)) == 6000


def test_the_size_of_one_synthetic_split_does_not_disturb_another() -> None:
    small = load_dataset("synthetic", options={"train": 40})
    np.testing.assert_array_equal(small.test.x, load_dataset("synthetic").test.x)


@pytest.mark.parametrize("change", [{"seed": 1}, {"noise": 0.2}, {"classes": 9}])
def test_every_option_of_synthetic_counts(change: dict[str, Any]) -> None:
    assert checksum(load_dataset("synthetic", options=change)) != CHECKSUMS["synthetic"]


def test_synthetic_can_be_learned_but_not_by_the_mean_picture_alone() -> None:
    """The nearest mean picture is far better than guessing, and far from perfect."""
    dataset = load_dataset("synthetic")
    train, test = dataset.train.x.reshape(4000, -1) / 255, dataset.test.x.reshape(1000, -1) / 255
    means = np.stack([train[dataset.train.y == label].mean(axis=0) for label in range(10)])
    distance = ((test[:, None] - means) ** 2).sum(axis=2)
    accuracy = (distance.argmin(axis=1) == dataset.test.y).mean()
    assert 0.5 < accuracy < 0.98


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"classes": 1}, "classes is 1. Use a whole number of at least 2."),
        ({"classes": 0}, "classes is 0."),
        ({"side": -8}, "side is -8. Use a whole number of at least 4."),
        ({"channels": 0}, "channels is 0."),
        ({"train": 0}, "train is 0. Use a whole number of at least 10."),
        ({"validation": -1}, "validation is -1."),
        ({"test": 9}, "test is 9. Use a whole number of at least 10."),
        ({"train": 100.0}, "train is 100.0."),
        ({"train": "100"}, "train is '100'."),
        ({"classes": True}, "classes is True."),
        ({"seed": -1}, "seed is -1. Use a whole number of at least 0."),
        ({"noise": -0.1}, "noise is -0.1. Use a number from 0 to 10."),
        ({"noise": float("nan")}, "noise is nan."),
        ({"noise": float("inf")}, "noise is inf."),
        ({"noise": "loud"}, "noise is 'loud'."),
        ({"side": 10_000}, "600,000,000,000 pixels. Use at most 268,435,456: fewer images, or smaller ones."),
    ],
)
def test_options_of_synthetic_that_cannot_work_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_dataset("synthetic", options=options)
    assert sentence in str(caught.value)
