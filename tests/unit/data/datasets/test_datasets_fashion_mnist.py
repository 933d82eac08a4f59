"""Fashion-MNIST from four idx files: they must fit together."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.data.datasets.datasets_files import images_file, labels_file, write_fashion

from hatdfed.data.datasets import fashion_mnist, load_dataset
from hatdfed.data.datasets.fashion_mnist import TEST_LABELS, TRAIN_IMAGES, TRAIN_LABELS
from hatdfed.errors import DataError


@pytest.mark.parametrize("packed", [False, True])
def test_the_last_sixth_of_the_training_file_is_held_back_for_validation(tmp_path: Path, packed: bool) -> None:
    dataset = load_dataset("fashion-mnist", data_dir=write_fashion(tmp_path, packed=packed))
    assert dataset.train.x.shape == (50, 1, 28, 28)
    assert dataset.train.x[:, 0, 0, 0].tolist() == list(range(50))
    assert dataset.validation.x[:, 0, 0, 0].tolist() == list(range(50, 60))
    assert dataset.test.y.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    assert dataset.bits_per_sample == 28 * 28 * 8


def test_a_count_of_labels_that_differs_from_the_images_is_refused(tmp_path: Path) -> None:
    folder = write_fashion(tmp_path, packed=False)
    (folder / TRAIN_LABELS).write_bytes(labels_file(59))
    with pytest.raises(DataError, match=r"ubyte holds 60 images and .*ubyte holds 59 labels"):
        load_dataset("fashion-mnist", data_dir=folder)


def test_a_label_out_of_range_is_refused(tmp_path: Path) -> None:
    folder = write_fashion(tmp_path, packed=False)
    (folder / TEST_LABELS).write_bytes(labels_file(12, classes=11))
    with pytest.raises(DataError, match=r"t10k-labels-idx1-ubyte holds the label 10\. Labels from 0 to 9"):
        load_dataset("fashion-mnist", data_dir=folder)


def test_images_of_another_size_are_refused(tmp_path: Path) -> None:
    folder = write_fashion(tmp_path, packed=False)
    (folder / TRAIN_IMAGES).write_bytes(images_file(60, side=27))
    with pytest.raises(DataError, match=r"holds images of 27×27 pixels\. Fashion-MNIST has 28×28"):
        load_dataset("fashion-mnist", data_dir=folder)


def test_too_few_images_to_hold_some_back_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"holds 5 images\. At least 6 were wanted"):
        load_dataset("fashion-mnist", data_dir=write_fashion(tmp_path, train=5))


def test_locating_names_the_folder_of_the_files(tmp_path: Path, clean_machine: Path) -> None:
    folder = write_fashion(tmp_path / "FashionMNIST" / "raw")
    assert fashion_mnist.locate(tmp_path) == str(folder)
    assert fashion_mnist.locate(tmp_path / "nowhere") is None
