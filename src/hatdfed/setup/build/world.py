"""The data of a run: images as tensors, and who holds which of them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from hatdfed.data.datasets.base import Dataset, Images
from hatdfed.data.devices import LocalWork, SimulatedDevices
from hatdfed.data.partition import draw_label_skewed_shards, draw_validation_sample, split_by_group
from hatdfed.errors import ConfigError
from hatdfed.server.work import Batch, HeldOut
from hatdfed.setup.config import Config


class Pools(NamedTuple):
    """A data set, standardised; made once, however many runs use it."""

    train: Batch
    validation: Batch
    test: Batch


class World(NamedTuple):
    """What all methods with one seed meet alike."""

    sources: list[SimulatedDevices]
    test: HeldOut  # for after the last round


def make_pools(dataset: Dataset) -> Pools:
    """Standardised images as tensors."""
    return Pools(*(_batch(dataset, images) for images in (dataset.train, dataset.validation, dataset.test)))


def make_world(config: Config, dataset: Dataset, pools: Pools) -> World:
    """Each server's devices, with the shard of the training pool that they share out among themselves."""
    shards = _shards(config, dataset)
    validation = _validation(config, pools)
    work = local_work(config)
    sources = [
        SimulatedDevices(pools.train, shard, validation, dataset.num_classes, work, config.seed, server)
        for server, shard in enumerate(shards)
    ]
    counts = np.stack([np.bincount(dataset.train.labels[shard], minlength=dataset.num_classes) for shard in shards])
    return World(sources, HeldOut(pools.test, counts / counts.sum(axis=1, keepdims=True)))


def local_work(config: Config) -> LocalWork:
    """How a server works on a round's data."""
    return LocalWork(
        num_devices=config.devices,
        samples_per_round=config.samples_per_round,
        online_probability=config.device_online_probability,
        local_passes=config.local_passes,
        batch_size=config.batch_size,
        probe_size=config.probe_size,
        probe_top_up=config.probe_top_up,
        churn=config.churn,
    )


def _shards(config: Config, dataset: Dataset) -> list[NDArray[np.int64]]:
    if config.split == "labels":
        return draw_label_skewed_shards(
            dataset.train.labels,
            seed=config.seed,
            num_servers=config.servers,
            images_per_server=config.images_per_server,
            label_concentration=config.label_concentration,
            disjoint=config.disjoint,
            label_groups=config.label_groups,
        )
    if dataset.groups is None:
        raise ConfigError(
            f"split is groups, but {config.dataset!r} does not say whom its images come from. Use labels."
        )
    sizes = {"num_servers": config.servers, "images_per_server": config.images_per_server}
    return split_by_group(dataset.groups, seed=config.seed, **sizes)


def _validation(config: Config, pools: Pools) -> Batch:
    """One validation sample for all servers; the test set only where the leak itself is studied (D3)."""
    if config.leaks_test:
        return pools.test
    chosen = draw_validation_sample(len(pools.validation.y), seed=config.seed, size=config.validation_images)
    return Batch(pools.validation.x[chosen], pools.validation.y[chosen])


def _batch(dataset: Dataset, images: Images) -> Batch:
    pixels, labels = (torch.tensor(part) for part in images)
    mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in (dataset.mean, dataset.std))
    return Batch((pixels.float() / 255 - mean) / std, labels)
