"""Which server owns which samples: label skew, natural splits, and the validation sample that all servers share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hatdfed.core.task import MULTI_LABEL, REGRESSION, TaskKind
from hatdfed.errors import ConfigError
from hatdfed.randomness import stream

Indices = NDArray[np.int64]
_BINS = 10  # of target values


def find_strata(y: NDArray[Any], task: TaskKind) -> NDArray[Any]:  # [n, …] -> [n]
    """What label skew is by: the class; in a regression, the bin of the first target value, of ten equally full ones.

    With several labels at once, the rarest label of a sample, or none. Sequences of tokens have nothing of the kind:
    all are of one stratum, and so every server gets a random sample.
    """
    if task.has_classes:
        return y
    if task.name == REGRESSION:
        values = y.reshape(len(y), -1)[:, 0]
        bounds = np.quantile(values, np.arange(1, _BINS) / _BINS)
        return np.searchsorted(bounds, values, side="right").astype(np.int64)
    if task.name == MULTI_LABEL:
        rarest_first = np.argsort(y.sum(axis=0), kind="stable")
        has = y[:, rarest_first] > 0
        rarest: NDArray[Any] = np.where(has.any(axis=1), has.argmax(axis=1), y.shape[1])
        return rarest
    return np.zeros(len(y), dtype=np.int64)


def draw_label_skewed_shards(
    labels: Indices,
    *,
    seed: int,
    num_servers: int,
    images_per_server: int | Sequence[int],
    label_concentration: float,
    disjoint: bool = False,
    label_groups: int = 1,
) -> list[Indices]:
    """Draw the images that each server owns: r_i ~ Dir(λ), then a multinomial draw of its labels (D1).

    Images are drawn without replacement within a server; servers may share images unless `disjoint`. With several
    `label_groups`, servers and labels are assigned to the groups in turn, and a server owns labels of its group only.
    """
    amounts = [images_per_server] * num_servers if isinstance(images_per_server, int) else list(images_per_server)
    _check_sizes(len(labels), amounts, disjoint=disjoint)
    by_label = [np.flatnonzero(labels == label) for label in range(int(labels.max()) + 1)]
    if label_groups > min(num_servers, len(by_label)):
        raise ConfigError(
            f"label_groups is {label_groups}, but {num_servers} servers and {len(by_label)} labels make at most "
            f"{min(num_servers, len(by_label))} groups."
        )
    shards: list[Indices] = []
    for server in range(num_servers):
        rng = stream(seed, "partition", server)
        available = [
            len(pool) if label % label_groups == server % label_groups else 0 for label, pool in enumerate(by_label)
        ]
        _check_group(sum(available), amounts[server], label_groups)
        counts = _draw_label_counts(rng, available, amounts[server], label_concentration)
        chosen = [rng.choice(pool, size=count, replace=False) for pool, count in zip(by_label, counts, strict=True)]
        shard = np.concatenate(chosen)
        rng.shuffle(shard)
        shards.append(shard)
        if disjoint:
            by_label = [np.setdiff1d(pool, own) for pool, own in zip(by_label, chosen, strict=True)]
    return shards


def split_by_group(groups: Indices, *, seed: int, num_servers: int, images_per_server: int) -> list[Indices]:
    """Split by person or place: each belongs to one server, which owns at most `images_per_server` images."""
    names = stream(seed, "groups").permutation(np.unique(groups))
    if num_servers > len(names):
        raise ConfigError(
            f"servers is {num_servers}, but the data come from {len(names)} people or places. "
            f"Use at most {len(names)} servers, or split: labels."
        )
    shards: list[Indices] = []
    for server in range(num_servers):
        own = np.flatnonzero(np.isin(groups, names[server::num_servers]))
        shards.append(stream(seed, "partition", server).permutation(own)[:images_per_server])
    return shards


def draw_validation_sample(pool_size: int, *, seed: int, size: int) -> Indices:
    """Draw one sample for all servers and rounds of a seed: a new one each round would add noise to every gain (D3)."""
    if size > pool_size:
        raise ConfigError(
            f"validation_images is {size}, but the data set holds back {pool_size} images for validation. "
            f"Use at most {pool_size}."
        )
    return np.sort(stream(seed, "validation").choice(pool_size, size=size, replace=False))


def _draw_label_counts(rng: np.random.Generator, available: list[int], total: int, concentration: float) -> list[int]:
    """Draw how many images of each label; what a label cannot supply goes to the others in proportion."""
    shares = rng.dirichlet(np.full(len(available), concentration))
    room = np.array(available)
    counts = np.zeros(len(available), dtype=np.int64)
    while (missing := total - int(counts.sum())) > 0:
        open_shares = np.where(counts < room, np.maximum(shares, 1e-12), 0.0)
        counts = np.minimum(counts + rng.multinomial(missing, open_shares / open_shares.sum()), room)
    return [int(count) for count in counts]


def _check_group(available: int, images_per_server: int, label_groups: int) -> None:
    if images_per_server > available:
        raise ConfigError(
            f"images_per_server is {images_per_server}, but with label_groups {label_groups} the labels of a group "
            f"have {available} images left. Use fewer groups or fewer images."
        )


def _check_sizes(num_images: int, amounts: Sequence[int], *, disjoint: bool) -> None:
    num_servers, most = len(amounts), max(amounts)
    if most > num_images:
        raise ConfigError(
            f"images_per_server is {most}, but the training pool has {num_images} images. Use at most {num_images}."
        )
    if num_servers > num_images:
        raise ConfigError(
            f"servers is {num_servers}, but the training pool has only {num_images} images, less than one for each. "
            f"Use at most {num_images} servers or a larger data set."
        )
    if disjoint and sum(amounts) > num_images:
        raise ConfigError(
            f"{num_servers} servers with {most} images of their own need {sum(amounts)}, but "
            f"the training pool has {num_images}. Use at most {num_images // most} servers, "
            "fewer images_per_server, or disjoint: false."
        )
