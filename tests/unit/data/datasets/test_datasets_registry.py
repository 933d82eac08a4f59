"""Data sets by name, and what every one of them promises."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hatdfed.core.task import TaskKind
from hatdfed.data.datasets import DATASETS, dataset_kind, load_dataset
from hatdfed.data.datasets.base import Dataset, Examples, compute_channel_statistics, make_dataset
from hatdfed.errors import ConfigError

PAPER_SETS = ("digits", "fashion-mnist", "cifar-10", "synthetic")
NATURAL_SETS = ("flights", "speeches", "typefaces", "vowels")


def test_the_data_sets_are_known_by_name() -> None:
    of_users = [
        name for name in DATASETS if name.startswith("arrays-")
    ]  # other tests of this process may have added some
    assert [name for name in DATASETS if name not in of_users] == [*PAPER_SETS, *NATURAL_SETS]
    assert all(dataset_kind(name).name == name for name in DATASETS)
    assert all("\n" not in kind.summary for kind in DATASETS.values())


def test_an_unknown_data_set_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match=r"no data set called 'digit'\. Did you mean digits\?"):
        load_dataset("digit")


def test_an_unknown_option_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match=r"synthetic has no option 'class'\. Did you mean classes\?"):
        load_dataset("synthetic", options={"class": 3})
    with pytest.raises(ConfigError, match=r"digits has no option 'side'\. It takes no options\."):
        load_dataset("digits", options={"side": 9})


@pytest.mark.parametrize("option", ["data_dir", "progress"])
def test_the_plain_arguments_are_not_options(option: str) -> None:
    with pytest.raises(ConfigError, match="has no option"):
        load_dataset("synthetic", options={option: None})


def test_the_embedded_and_the_generated_one_are_always_at_hand(tmp_path: Path) -> None:
    assert DATASETS["digits"].locate(None) == "embedded"
    assert DATASETS["synthetic"].locate(tmp_path / "nowhere") == "generated"


def test_every_data_set_brings_the_same_settings() -> None:
    keys = {frozenset(DATASETS[name].defaults) for name in PAPER_SETS}
    assert len(keys) == 1
    assert DATASETS["digits"].defaults["energy"]["model_bits"] == "actual"
    assert DATASETS["synthetic"].defaults == DATASETS["digits"].defaults
    assert DATASETS["fashion-mnist"].defaults["energy"]["model_bits"] == 47_200_000
    assert DATASETS["cifar-10"].defaults["energy"] == {
        "model_bits": 135_200_000,
        "weak_joules_per_sample": 60.0,
        "strong_joules_per_sample": 30.0,
    }
    assert {DATASETS[name].defaults["samples_per_round"] for name in PAPER_SETS} == {60}


@pytest.mark.parametrize("name", NATURAL_SETS)
def test_a_set_with_a_natural_split_is_split_by_it_unless_told_otherwise(name: str) -> None:
    defaults = DATASETS[name].defaults
    assert defaults["split"] == "groups"
    assert set(defaults) >= {"servers", "network", *DATASETS["digits"].defaults}


def test_no_data_set_brings_the_nested_table_of_another() -> None:
    tables = [kind.defaults["energy"] for kind in DATASETS.values()]
    assert len({id(table) for table in tables}) == len(tables)


@pytest.mark.parametrize("name", ["digits", "synthetic"])
def test_arrays_have_the_promised_types_and_are_read_only(name: str) -> None:
    dataset: Dataset = load_dataset(name)
    for images in (dataset.train, dataset.validation, dataset.test):
        assert images.x.dtype == np.uint8
        assert images.y.dtype == np.int64
        assert images.count == len(images.x) == len(images.y)
        assert not images.x.flags.writeable
        assert not images.y.flags.writeable
        assert set(np.unique(images.y)) == set(range(dataset.task.num_outputs))


def test_statistics_are_those_of_the_training_pixels_in_each_channel() -> None:
    pixels = np.random.default_rng(5).integers(0, 256, (7, 3, 4, 4), dtype=np.uint8)
    pixels[:, 1] //= 3
    mean, std = compute_channel_statistics(pixels)
    assert mean == pytest.approx((pixels / 255).mean(axis=(0, 2, 3)))
    assert std == pytest.approx((pixels / 255).std(axis=(0, 2, 3)))


@pytest.mark.parametrize("colour", [0, 7, 255])
def test_a_channel_of_one_colour_can_still_be_divided_by_its_deviation(colour: int) -> None:
    images = Examples(np.full((4, 1, 2, 2), colour, np.uint8), np.zeros(4, np.int64))
    dataset = make_dataset("plain", train=images, validation=images, test=images, task=TaskKind("classification", 1))
    assert dataset.mean == pytest.approx((colour / 255,))
    assert dataset.std == (1.0,)


def test_the_room_needs_neither_torch_nor_scikit_learn_to_be_imported() -> None:
    program = (
        "import sys; from hatdfed.data.datasets import load_dataset; load_dataset('synthetic'); "
        "print(sorted({'torch', 'sklearn'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
