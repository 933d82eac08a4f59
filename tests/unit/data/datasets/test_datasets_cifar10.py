"""CIFAR-10 in its binary version: whole records or a sentence, and a split that depends on no seed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.unit.data.datasets.datasets_files import numbers_of, records, write_cifar

from hatdfed.data.datasets import load_dataset
from hatdfed.data.datasets.cifar10 import RECORD_BYTES, TEST_BATCH, TRAIN_BATCHES, read_records
from hatdfed.errors import DataError


def refusal(path: Path) -> str:
    with pytest.raises(DataError) as caught:
        read_records(path)
    return str(caught.value)


def test_a_record_is_a_label_and_three_channels_one_after_another(tmp_path: Path) -> None:
    path = tmp_path / "some.bin"
    path.write_bytes(records(3, first=9))
    images = read_records(path)
    assert images.x.shape == (3, 3, 32, 32)
    assert images.y.tolist() == [9, 0, 1]
    assert images.y.dtype == np.int64
    assert images.x[:, 0, 0, 1].tolist() == [9, 10, 11]
    assert images.x[:, 1, 0, 0].tolist() == [77, 77, 77]


@pytest.mark.parametrize("size", [0, 1, RECORD_BYTES - 1, RECORD_BYTES + 1, 5 * RECORD_BYTES - 100])
def test_a_file_that_is_not_whole_records_is_refused(tmp_path: Path, size: int) -> None:
    path = tmp_path / "data_batch_1.bin"
    path.write_bytes(bytes(size))
    sentence = refusal(path)
    assert f"{path} holds {size} bytes. A whole number of records of 3073 bytes was wanted" in sentence
    assert "Replace it by the file from cifar-10-binary.tar.gz" in sentence


def test_a_label_above_nine_is_refused(tmp_path: Path) -> None:
    content = bytearray(records(4))
    content[2 * RECORD_BYTES] = 10
    path = tmp_path / "test_batch.bin"
    path.write_bytes(content)
    assert f"{path} (12292 bytes) has the label 10 in record 2. Labels from 0 to 9" in refusal(path)


def test_a_file_that_cannot_be_opened_is_refused(tmp_path: Path) -> None:
    assert "cannot be read (No such file or directory)" in refusal(tmp_path / "missing.bin")


def test_the_last_tenth_of_each_batch_is_held_back_for_validation(tmp_path: Path) -> None:
    write_cifar(tmp_path / "cifar-10-batches-bin", per_file=20)
    dataset = load_dataset("cifar-10", data_dir=tmp_path)
    assert (dataset.train.count, dataset.validation.count, dataset.test.count) == (90, 10, 20)
    assert numbers_of(dataset.validation.x) == [18, 19, 38, 39, 58, 59, 78, 79, 98, 99]
    assert numbers_of(dataset.test.x) == list(range(100, 120))
    together = numbers_of(dataset.train.x) + numbers_of(dataset.validation.x)
    assert sorted(together) == list(range(100))
    assert (dataset.train.y == np.array(numbers_of(dataset.train.x)) % 10).all()


def test_a_small_folder_still_holds_an_image_of_each_batch_back(tmp_path: Path) -> None:
    dataset = load_dataset("cifar-10", data_dir=write_cifar(tmp_path, per_file=2))
    assert (dataset.train.count, dataset.validation.count) == (5, 5)


def test_one_record_a_batch_leaves_nothing_for_validation_and_is_refused(tmp_path: Path) -> None:
    folder = write_cifar(tmp_path, per_file=1)
    with pytest.raises(DataError, match="hold one record each"):
        load_dataset("cifar-10", data_dir=folder)


def test_a_spoilt_file_among_good_ones_is_named(tmp_path: Path) -> None:
    folder = write_cifar(tmp_path, per_file=2)
    (folder / TRAIN_BATCHES[3]).write_bytes(b"short")
    with pytest.raises(DataError, match=r"data_batch_4\.bin holds 5 bytes"):
        load_dataset("cifar-10", data_dir=folder)


def test_a_folder_without_the_test_batch_is_refused(tmp_path: Path) -> None:
    folder = write_cifar(tmp_path, per_file=2)
    (folder / TEST_BATCH).unlink()
    with pytest.raises(DataError, match=r"does not hold CIFAR-10 .* Looked for data_batch_1\.bin, .*test_batch"):
        load_dataset("cifar-10", data_dir=folder)


def test_an_image_of_cifar_takes_24576_bits(tmp_path: Path) -> None:
    dataset = load_dataset("cifar-10", data_dir=write_cifar(tmp_path, per_file=2))
    assert dataset.bits_per_sample == 3 * 32 * 32 * 8
    assert len(dataset.mean) == len(dataset.std) == 3
