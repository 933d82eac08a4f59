"""The data of a run: samples as tensors, and who holds which of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from hatdfed.core.link_loss import LinkLoss
from hatdfed.core.task import TaskKind
from hatdfed.data.datasets.base import Dataset, Examples
from hatdfed.data.devices import DataChange, LocalWork, SimulatedDevices
from hatdfed.data.flaws import Flaws
from hatdfed.data.kinds import PLAIN, Kind, make_kinds
from hatdfed.data.members import Members, draw_amounts, share_work
from hatdfed.data.partition import draw_validation_sample
from hatdfed.data.partitioners import PARTITIONERS, Partitioner, TrainingSamples
from hatdfed.data.standardise import make_tensors
from hatdfed.errors import ConfigError, naming_failures
from hatdfed.server.attacks import ATTACKS, Liars, make_liars
from hatdfed.server.tasks import make_task
from hatdfed.server.work import Batch, HeldOut
from hatdfed.setup.build.coordinator import build_component
from hatdfed.setup.config import Component, Config
from hatdfed.setup.layers import config_members

_HELD_OUT_SHARE = 0.2  # of a server's own images, where these are what it is measured on
_LEAST_PROBE = 30  # images, if that is no more than a quarter of what a server has
_PROBE_SHARE = 0.1  # of them, where received models are judged on images that are not trained on


class Pools(NamedTuple):
    """A data set, standardised; made once, however many runs use it."""

    train: Batch
    validation: Batch
    test: Batch


class World(NamedTuple):
    """What all methods with one seed meet alike."""

    sources: list[SimulatedDevices]
    test: HeldOut  # for after the last round
    members: Members
    liars: Liars | None  # None: everybody is honest
    loss: LinkLoss | None  # None: every message arrives


def make_pools(dataset: Dataset) -> Pools:
    """Standardised images as tensors."""
    return Pools(*(_batch(dataset, images) for images in (dataset.train, dataset.validation, dataset.test)))


def make_world(config: Config, dataset: Dataset) -> World:
    """The world of one run."""
    return make_worlds([config], dataset)[0]


def make_worlds(configs: Sequence[Config], dataset: Dataset) -> list[World]:
    """The worlds of several runs on one data set; their servers share one pool of images, as a fleet needs it."""
    train = _TrainingExamples(dataset)
    drawn = [_draw_world(config, dataset, train) for config in configs]
    pools = Pools(train.batch(), *(_batch(dataset, images) for images in (dataset.validation, dataset.test)))
    seen = _SeenAs(dataset, pools)
    return [_make_world(config, dataset, pools, seen, each) for config, each in zip(configs, drawn, strict=True)]


class _TrainingExamples:
    """The training images of a data set, and behind them those that some servers have in another form."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self._count = dataset.train.count
        self._others: list[Examples] = []

    def add(self, images: Examples) -> NDArray[np.int64]:
        """Where the pool will have these images."""
        first, self._count = self._count, self._count + images.count
        self._others.append(images)
        return np.arange(first, self._count)

    def batch(self) -> Batch:
        """All of them."""
        parts = [_batch(self._dataset, images) for images in (self._dataset.train, *self._others)]
        return parts[0] if len(parts) == 1 else Batch(*(torch.cat(part) for part in zip(*parts, strict=True)))


class _SeenAs:
    """Validation and test images as servers of each kind see them; made once for all that see them alike."""

    def __init__(self, dataset: Dataset, pools: Pools) -> None:
        self._dataset, self._pools = dataset, pools
        self._tests: dict[Kind, Batch] = {PLAIN: pools.test}
        self._samples: dict[Any, Batch] = {}

    def test(self, kind: Kind) -> Batch:
        """All test images."""
        if kind not in self._tests:
            self._tests[kind] = _batch(self._dataset, kind.apply(self._dataset.test, self._dataset.task.num_classes))
        return self._tests[kind]

    def validation(self, config: Config, kind: Kind) -> Batch:
        """The validation sample of a seed; the test set only where the leak itself is studied (D3)."""
        if config.leaks_test:
            return self.test(kind)
        key = (config.seed, config.validation_images, kind)
        if key not in self._samples:
            everything, wanted = self._dataset.validation, config.validation_images
            chosen = draw_validation_sample(everything.count, seed=config.seed, size=wanted)
            sample = kind.apply(everything.take(chosen), self._dataset.task.num_classes)
            self._samples[key] = _batch(self._dataset, sample)
        return self._samples[key]


class _Phase(NamedTuple):
    """What a server owns for a part of the run, as places in the pool."""

    kind: Kind
    shard: NDArray[np.int64]
    held_out: NDArray[np.int64]  # of its own images, for `feedback: own` and `probe_from: held-out`


class _DrawnWorld(NamedTuple):
    members: Members
    servers: list[list[_Phase]]  # one phase, or two where the server's group changes


def _draw_world(config: Config, dataset: Dataset, train: _TrainingExamples) -> _DrawnWorld:
    world, members = config.world, config_members(config)
    _refuse_label_flaws(config, dataset.task)
    image_shape = dataset.sample_shape if dataset.has_images else None
    kinds = make_kinds(world.differ, world.groups, dataset.task.num_classes, image_shape)
    shards = _shards(config, dataset)
    servers = [_draw_server(config, dataset, train, members, kinds, i, shard) for i, shard in enumerate(shards)]
    return _DrawnWorld(members, servers)


def _refuse_label_flaws(config: Config, task: TaskKind) -> None:
    """Labels can be wrong where there are some."""
    world = config.world
    flips = bool(world.liars) and ATTACKS[world.attack].flips_labels
    if (world.bad_labels or flips) and not task.has_classes:
        what = f"world.attack is {world.attack}" if flips else f"world.bad_labels is {world.bad_labels}"
        raise ConfigError(
            f"{what}, but samples of task {task.name} have no class label. Choose another attack or flaw."
        )


def _draw_server(
    config: Config,
    dataset: Dataset,
    train: _TrainingExamples,
    members: Members,
    kinds: Sequence[Kind],
    i: int,
    shard: NDArray[np.int64],
) -> list[_Phase]:
    """Place the images that server i sees otherwise than the data set has them behind all others."""
    flaws = Flaws(
        seed=config.seed,
        server=i,
        label_rate=config.world.bad_label_rate if members.has_bad_labels[i] else 0.0,
        is_noise=bool(members.has_broken_sensors[i]),
        flips_labels=bool(members.is_liar[i]) and ATTACKS[config.world.attack].flips_labels,
    )
    phases, held_out = [], _held_out_count(config, len(shard))
    if held_out >= len(shard):
        raise ConfigError(
            f"{'feedback' if config.feedback == 'own' else 'probe_from'} holds out samples of each server's own, but "
            f"server {i} owns {len(shard)}, which leaves it none to train on. Every server needs two or more."
        )
    for kind in dict.fromkeys((kinds[members.group[i]], kinds[members.last_group[i]])):
        places = shard
        if kind != PLAIN or flaws:
            seen = kind.apply(dataset.train.take(shard), dataset.task.num_classes)
            places = train.add(flaws.apply(seen, dataset.task.num_classes))
        phases.append(_Phase(kind, places[held_out:], places[:held_out]))
    return phases


def _make_world(config: Config, dataset: Dataset, pools: Pools, seen: _SeenAs, drawn: _DrawnWorld) -> World:
    change_at = int(config.world.change_at * (config.horizon or config.rounds))
    sources = []
    for i, phases in enumerate(drawn.servers):
        # A change at round 0 is none: what servers were before it, nobody has seen.
        first, *later = phases if change_at else phases[-1:]
        changes = [
            DataChange(change_at, phase.shard, _validation(config, pools, seen, phase), phase.held_out)
            for phase in later
        ]
        source = SimulatedDevices(
            pool=pools.train,
            shard=first.shard,
            validation=_validation(config, pools, seen, first),
            num_classes=dataset.task.num_classes,
            settings=_work_of_server(config, len(first.shard) + len(first.held_out)),
            seed=config.seed,
            server=i,
            change=changes[0] if changes else None,
            held_out=first.held_out,
        )
        sources.append(source)
    counts = np.stack([source.label_counts_at(config.rounds).numpy() for source in sources])
    shares = counts / np.maximum(1, counts.sum(axis=1, keepdims=True))
    last_kinds = [phases[-1].kind for phases in drawn.servers]
    test = _held_out(pools, seen, last_kinds, shares)._replace(task=make_task(dataset.task))
    return World(sources, test, drawn.members, _make_liars(config, drawn.members), _make_loss(config))


def _make_loss(config: Config) -> LinkLoss | None:
    least, most = config.world.link_loss
    return LinkLoss(config.seed, least, most) if most > 0 else None


def _make_liars(config: Config, members: Members) -> Liars | None:
    servers = np.flatnonzero(members.is_liar)
    if not len(servers):
        return None
    return make_liars(config.world.attack, servers, rounds=config.horizon or config.rounds, seed=config.seed)


def _held_out(pools: Pools, seen: _SeenAs, kinds: Sequence[Kind], shares: NDArray[np.float64]) -> HeldOut:
    """The test data, as all servers see them and as each does."""
    others = sorted(set(kinds) - {PLAIN})
    if not others:
        return HeldOut(pools.test, shares)
    places = {PLAIN: -1, **{kind: place for place, kind in enumerate(others)}}
    kind_of = np.array([places[kind] for kind in kinds])
    return HeldOut(pools.test, shares, tuple(seen.test(kind) for kind in others), kind_of)


def _validation(config: Config, pools: Pools, seen: _SeenAs, phase: _Phase) -> Batch:
    """What a server is measured on during the run."""
    if config.feedback != "own":
        return seen.validation(config, phase.kind)
    chosen = torch.from_numpy(phase.held_out)
    return Batch(pools.train.x[chosen], pools.train.y[chosen])


def _work_of_server(config: Config, owned: int) -> LocalWork:
    """As much of a round's work as the server has of the data, where servers have unequal amounts."""
    work = local_work(config)
    if config.world.amount_ratio == 1:
        return work
    return replace(work, samples_per_round=share_work(work.samples_per_round, owned, config.images_per_server))


def _held_out_count(config: Config, owned: int) -> int:
    if config.feedback != "own" and config.probe_from != "held-out":
        return 0
    if config.feedback == "own":
        return max(1, round(_HELD_OUT_SHARE * owned))
    return max(1, round(_PROBE_SHARE * owned), min(_LEAST_PROBE, owned // 4))


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
        holds_out_probe=config.probe_from == "held-out",
        release_at=_find_release(config),
        churn=config.churn,
        keeps_uploads=config.uploads.keep != "none",
        memory_samples=config.uploads.memory_samples,
        train_samples=config.uploads.train_samples,
    )


def _find_release(config: Config) -> int | None:
    """The round from which on held-out images are trained on, if that ever is."""
    if config.probe_release >= 1 or config.probe_from != "held-out" or config.feedback == "own":
        return None
    return int(config.probe_release * (config.horizon or config.rounds))


def _shards(config: Config, dataset: Dataset) -> list[NDArray[np.int64]]:
    samples = TrainingSamples(dataset.train.y, dataset.groups, dataset.task, _amounts(config))
    partitioner = make_partitioner(config)
    if config.split in PARTITIONERS.built_in:
        return _check_shards(partitioner.split(samples, config.seed), samples, config.split)
    with naming_failures(f"split {config.split!r}"):
        return _check_shards(partitioner.split(samples, config.seed), samples, config.split)


def make_partitioner(config: Config) -> Partitioner:
    """What splits the training samples over the servers."""
    return build_component(
        "split",
        Component(name=config.split, **config.split_options),
        PARTITIONERS,
        settings_key="split_options",
        label_concentration=config.label_concentration,
        label_groups=config.label_groups,
        disjoint=config.disjoint,
    )


def _check_shards(shards: Sequence[NDArray[np.int64]], samples: TrainingSamples, split: str) -> list[NDArray[np.int64]]:
    """Refuse what a partitioner of a user's own must not do: it would show far from here."""
    if not isinstance(shards, Sequence | np.ndarray):
        raise ConfigError(
            f"split {split!r} returned {type(shards).__name__}, but must return a list with the samples of each server."
        )
    if len(shards) != samples.num_servers:
        raise ConfigError(f"split {split!r} made {len(shards)} parts, but there are {samples.num_servers} servers.")
    for server, shard in enumerate(shards):
        if not len(shard):
            raise ConfigError(f"split {split!r} leaves server {server} without a sample. Every server needs one.")
        if min(shard) < 0 or max(shard) >= len(samples.y):
            raise ConfigError(
                f"split {split!r} gives server {server} samples {min(shard)} to {max(shard)}, but the training pool "
                f"has 0 to {len(samples.y) - 1}."
            )
    return [np.asarray(shard, dtype=np.int64) for shard in shards]


def _amounts(config: Config) -> list[int]:
    """How many samples each server is to own."""
    if config.world.amount_ratio == 1:
        return [config.images_per_server] * config.servers
    return draw_amounts(config.seed, config.servers, config.images_per_server, config.world.amount_ratio)


def _batch(dataset: Dataset, examples: Examples) -> Batch:
    return make_tensors(examples, dataset.format)
