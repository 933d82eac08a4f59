"""What every data set must satisfy."""

from __future__ import annotations

import numpy as np
import torch

from hatdfed.data.datasets.base import Dataset, DatasetKind, find_feature_axis
from hatdfed.data.own.checks import BUILT_IN_TASKS, check_alike, make_examples
from hatdfed.data.standardise import make_tensors
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

    def test_samples_and_targets_fit_together_and_the_task(self) -> None:
        dataset = self._load()
        assert dataset.task.name == self.kind().task
        for examples in (dataset.train, dataset.validation, dataset.test):
            assert len(examples.x) == len(examples.y) > 0
            assert examples.x.dtype == dataset.train.x.dtype
            assert examples.x.shape[1:] == dataset.sample_shape
            if dataset.task.name in BUILT_IN_TASKS:
                checked, kind = make_examples(examples.x, examples.y, dataset.task.name)
                np.testing.assert_array_equal(checked.x, examples.x)
                check_alike(checked, kind, dataset.sample_shape, dataset.task, dataset.train.x.dtype)
            batch = make_tensors(examples, dataset.format)
            assert bool(batch.x.isfinite().all())
            assert bool(batch.y.isfinite().all())
        assert dataset.groups is None or len(dataset.groups) == len(dataset.train.y)

    def test_inputs_are_standardised_by_the_training_data(self) -> None:
        dataset = self._load()
        assert len(dataset.mean) == len(dataset.std)
        assert min(dataset.std, default=1.0) > 0
        x = make_tensors(dataset.train, dataset.format).x
        if not dataset.mean:
            assert x.dtype == torch.int64
            return
        axis = find_feature_axis(x.ndim)
        assert len(dataset.mean) == x.shape[axis]
        others = [each for each in range(x.ndim) if each != axis]
        torch.testing.assert_close(x.double().mean(dim=others), torch.zeros(x.shape[axis]).double(), rtol=0, atol=0.1)

    def test_loading_twice_gives_the_same_data(self) -> None:
        one, two = self._load(), self._load()
        for mine, theirs in zip((*one.train, *one.test), (*two.train, *two.test), strict=True):
            np.testing.assert_array_equal(mine, theirs)

    def test_servers_know_of_every_class_even_if_nobody_has_it(self) -> None:
        dataset = self._load()
        few = {"servers": 3, "images_per_server": 8, "validation_images": 1, "rounds": 1}
        config = validate(overlay(overlay(Config().model_dump(), self.kind().defaults), few))
        world = make_world(config, dataset)
        assert world.test.label_shares.shape == (3, dataset.task.num_classes)
        for source in world.sources:
            assert len(source.label_counts_at(0)) == dataset.task.num_classes
            assert int(source.label_counts_at(0).sum()) == (len(source.shard) if dataset.task.has_classes else 0)

    def test_its_defaults_are_settings_that_exist(self) -> None:
        settings = overlay(Config().model_dump(), self.kind().defaults)
        assert validate(settings).rounds >= 1

    def test_it_says_where_it_is_without_failing(self) -> None:
        where = self.kind().locate(None)
        assert where is None or isinstance(where, str)
