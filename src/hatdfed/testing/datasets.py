"""What every data set must satisfy."""

from __future__ import annotations

import numpy as np

from hatdfed.data.datasets.base import Dataset, DatasetKind
from hatdfed.setup.build.world import make_world
from hatdfed.setup.config import Config
from hatdfed.setup.layers import overlay, validate


class DatasetLaws:
    """Tests that every data set must pass that can be loaded on this machine."""

    def kind(self) -> DatasetKind:
        """Return the data set under test."""
        raise NotImplementedError

    def _load(self) -> Dataset:
        return self.kind().load(None)

    def test_images_and_labels_fit_together(self) -> None:
        dataset = self._load()
        for images in (dataset.train, dataset.validation, dataset.test):
            assert images.x.dtype == np.uint8
            assert images.x.ndim == 4
            assert images.y.dtype == np.int64
            assert len(images.x) == len(images.y) > 0
            assert images.x.shape[1:] == dataset.train.x.shape[1:]
            assert images.y.min() >= 0
            assert images.y.max() < dataset.task.num_outputs
        assert len(dataset.mean) == len(dataset.std) == dataset.train.x.shape[1]
        assert min(dataset.std) > 0
        assert dataset.groups is None or len(dataset.groups) == len(dataset.train.y)

    def test_loading_twice_gives_the_same_data(self) -> None:
        one, two = self._load(), self._load()
        for mine, theirs in zip((*one.train, *one.test), (*two.train, *two.test), strict=True):
            np.testing.assert_array_equal(mine, theirs)

    def test_servers_know_of_every_class_even_if_nobody_has_it(self) -> None:
        dataset = self._load()
        few = {"servers": 3, "images_per_server": 8, "validation_images": 1, "rounds": 1}
        config = validate(overlay(overlay(Config().model_dump(), self.kind().defaults), few))
        world = make_world(config, dataset)
        assert world.test.label_shares.shape == (3, dataset.task.num_outputs)
        for source in world.sources:
            assert len(source.label_counts_at(0)) == dataset.task.num_outputs
            assert int(source.label_counts_at(0).sum()) == len(source.shard)

    def test_its_defaults_are_settings_that_exist(self) -> None:
        settings = overlay(Config().model_dump(), self.kind().defaults)
        assert validate(settings).rounds >= 1

    def test_it_says_where_it_is_without_failing(self) -> None:
        where = self.kind().locate(None)
        assert where is None or isinstance(where, str)
