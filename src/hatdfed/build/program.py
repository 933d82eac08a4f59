"""The servers' side: torch."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from hatdfed.aggregation import AGGREGATORS
from hatdfed.build.component import build_component
from hatdfed.build.policy import make_coordinator, make_prices
from hatdfed.codecs import CODECS
from hatdfed.config import Config
from hatdfed.coordinator import Coordinator
from hatdfed.edge_server import EdgeProgram
from hatdfed.errors import ConfigError, require_one_of
from hatdfed.fleets.mailbox import MailboxFleet
from hatdfed.learning.datasets.base import Dataset, Images
from hatdfed.learning.devices import LocalWork, SimulatedDevices
from hatdfed.learning.learner import Learner
from hatdfed.learning.networks import network_maker
from hatdfed.learning.optimisers import OPTIMISERS
from hatdfed.learning.partition import grouped_shards, label_skewed_shards, validation_sample
from hatdfed.learning.work import Batch
from hatdfed.policies import POLICIES
from hatdfed.policies.base import AnyPolicy
from hatdfed.randomness import torch_seed


class Simulation(NamedTuple):
    """A run, ready to be played."""

    coordinator: Coordinator
    fleet: MailboxFleet
    test: Batch  # for after the last round
    label_shares: NDArray[np.float64]  # [N, classes] of each server's own images


def make_simulation(config: Config, dataset: Dataset, *, run: str = "") -> Simulation:
    """Everything that `config` names, put together."""
    sources = make_sources(config, dataset)
    coordinator, program = make_actors(config, dataset)
    fleet = MailboxFleet(
        program,
        sources,
        coordinator.prices,
        initial_seeds=[initial_seed(config, server) for server in range(config.servers)],
        codec_name=config.codec,
        run=run,
    )
    shares = [np.bincount(dataset.train.labels[source.shard], minlength=dataset.num_classes) for source in sources]
    label_shares = np.stack(shares) / np.sum(shares, axis=1, keepdims=True)
    return Simulation(coordinator, fleet, _batch(dataset, dataset.test), label_shares)


def make_actors(config: Config, dataset: Dataset) -> tuple[Coordinator, EdgeProgram]:
    """Coordinator and server, refused with a sentence if they cannot work together or with so many servers."""
    program = make_program(config, dataset)
    _refuse_missing_plan(config, program)
    num_params = program.learner.num_params
    prices = make_prices(config, bits_per_sample=dataset.bits_per_sample, num_params=num_params)
    coordinator = make_coordinator(config, prices)
    coordinator.plan(coordinator.start(np.zeros(config.servers)))  # a policy that cannot draw for N servers says so now
    return coordinator, program


def make_program(config: Config, dataset: Dataset) -> EdgeProgram:
    """One server's program."""
    require_one_of("codec", config.codec, CODECS)
    return EdgeProgram(
        learner=_learner(config, dataset),
        aggregator=build_component("aggregator", config.aggregator, AGGREGATORS, quality_share=config.quality_share),
        codec=CODECS[config.codec],
        scores=_policy_class(config).needs_scores,
    )


def make_sources(config: Config, dataset: Dataset) -> list[SimulatedDevices]:
    """Each server's devices, with the shard of the training pool that they share out among themselves."""
    shards = _shards(config, dataset)
    pool, validation = _batch(dataset, dataset.train), _validation(config, dataset)
    work = LocalWork(
        num_devices=config.devices,
        samples_per_round=config.samples_per_round,
        online_probability=config.device_online_probability,
        local_passes=config.local_passes,
        batch_size=config.batch_size,
        probe_size=config.probe_size,
        probe_top_up=config.probe_top_up,
    )
    return [
        SimulatedDevices(pool, shard, validation, work, config.seed, server)
        for server, shard in enumerate(shards)
    ]


def _policy_class(config: Config) -> type[AnyPolicy]:
    require_one_of("policy.name", config.policy.name, POLICIES)
    return POLICIES[config.policy.name]


def _refuse_missing_plan(config: Config, program: EdgeProgram) -> None:
    if program.aggregator.needs_plan and not _policy_class(config).plans_mixing:
        able = ", ".join(name for name, policy in POLICIES.built_in.items() if policy.plans_mixing)
        raise ConfigError(
            f"aggregator {config.aggregator.name!r} merges by the weights of a plan, but policy "
            f"{config.policy.name!r} makes none. Use one of {able}, or another aggregator."
        )


def _shards(config: Config, dataset: Dataset) -> list[NDArray[np.int64]]:
    if config.split == "labels":
        return label_skewed_shards(
            dataset.train.labels,
            seed=config.seed,
            num_servers=config.servers,
            images_per_server=config.images_per_server,
            label_concentration=config.label_concentration,
            disjoint=config.disjoint,
        )
    if dataset.groups is None:
        raise ConfigError(
            f"split is groups, but {config.dataset!r} does not say whom its images come from. Use labels."
        )
    sizes = {"num_servers": config.servers, "images_per_server": config.images_per_server}
    return grouped_shards(dataset.groups, seed=config.seed, **sizes)


def initial_seed(config: Config, server: int) -> int:
    """What server `server` initialises its model from: its own draw, or everybody's."""
    return torch_seed(config.seed, "initial-model", 0 if config.common_init else server)


def _learner(config: Config, dataset: Dataset) -> Learner:
    _, channels, height, width = dataset.train.pixels.shape
    maker = partial(network_maker(config.network), (channels, height, width), dataset.num_classes)
    settings = config.learner
    optimiser = OPTIMISERS[settings.optimiser]
    known = {field.name for field in dataclasses.fields(optimiser)}
    chosen = {name: value for name, value in settings.model_dump().items() if name in known}
    return Learner(maker, optimiser(**chosen), xavier=settings.initialisation == "xavier")


def _validation(config: Config, dataset: Dataset) -> Batch:
    """One validation sample for all servers; the test set only where the leak itself is studied (D3)."""
    if config.leaks_test:
        return _batch(dataset, dataset.test)
    chosen = validation_sample(len(dataset.validation.labels), seed=config.seed, size=config.validation_images)
    return _batch(dataset, dataset.validation, chosen)


def _batch(dataset: Dataset, images: Images, chosen: NDArray[np.int64] | None = None) -> Batch:
    """Standardised images as tensors."""
    pixels, labels = (torch.tensor(part if chosen is None else part[chosen]) for part in images)
    mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in (dataset.mean, dataset.std))
    return Batch((pixels.float() / 255 - mean) / std, labels)
