"""Partitioners: how the training samples are split over servers, by the name that the setting `split` gives.

A partitioner is a frozen dataclass; its fields are its settings (`split_options`). Fields called
`label_concentration`, `label_groups` and `disjoint` are filled with the settings of these names. It gets what is known
about the samples, never the samples themselves, and returns for every server the indices of those that it owns.

`iid`, `shards` and `dirichlet` give no sample to two servers. They divide as many random samples as all servers
together are to own (`images_per_server` each), or all of them if there are no more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from hatdfed.core.task import NEXT_TOKEN, TaskKind
from hatdfed.data.partition import Indices, draw_label_skewed_shards, find_strata, split_by_group
from hatdfed.errors import ConfigError, require_one_of
from hatdfed.randomness import stream
from hatdfed.registry import Registry

_ATTEMPTS = 1000  # to draw a split in which every server has enough samples


class TrainingSamples(NamedTuple):
    """What a partitioner may know: about the training samples, and about the servers they are for."""

    y: NDArray[Any]  # [n, …] targets
    groups: NDArray[Any] | None  # [n] person or place that each sample comes from; None: nobody knows
    task: TaskKind
    amounts: Sequence[int]  # [N] samples that each server is to own, if there are enough

    @property
    def num_servers(self) -> int:
        """N."""
        return len(self.amounts)

    def find_labels(self, split: str) -> Indices:  # -> [n]
        """What stands for a label in the task (docs/data.md); refused where there is nothing."""
        if self.task.name == NEXT_TOKEN:
            raise ConfigError(
                f"split is {split}, but sequences of tokens have no label to split by. Use iid, or groups where the "
                "data have them."
            )
        return find_strata(self.y, self.task)

    def choose(self, seed: int) -> Indices:
        """As many random samples as all servers are to own together, or all, in random order."""
        total, wanted = len(self.y), sum(self.amounts)
        if self.num_servers > total:
            raise ConfigError(
                f"servers is {self.num_servers}, but the training pool has only {total} samples, less than one for "
                f"each. Use at most {total} servers or a larger data set."
            )
        return stream(seed, "partition-pool").permutation(total)[:wanted]


class Partitioner(Protocol):
    """Splits samples over servers."""

    takes_amounts: ClassVar[bool]  # whether servers own as many samples as they are to, in proportion where too few
    is_disjoint: ClassVar[bool]  # whether it promises that no sample has two owners

    def split(self, samples: TrainingSamples, seed: int) -> list[Indices]:
        """The samples of every server, as places in the training pool; a function of its arguments."""


@dataclass(frozen=True)
class LabelSkew:
    """The paper's split: labels by a Dirichlet draw of each server, which may own what others own, too (D1)."""

    label_concentration: float = 0.3
    label_groups: int = 1
    disjoint: bool = False

    takes_amounts: ClassVar[bool] = True
    is_disjoint: ClassVar[bool] = False

    def split(self, samples: TrainingSamples, seed: int) -> list[Indices]:
        """Every server draws by itself; sequences of tokens are all alike to it."""
        return draw_label_skewed_shards(
            find_strata(samples.y, samples.task),
            seed=seed,
            num_servers=samples.num_servers,
            images_per_server=samples.amounts,
            label_concentration=self.label_concentration,
            disjoint=self.disjoint,
            label_groups=self.label_groups,
        )


@dataclass(frozen=True)
class Groups:
    """By the person or place that samples come from: each belongs to one server."""

    takes_amounts: ClassVar[bool] = False
    is_disjoint: ClassVar[bool] = True

    def split(self, samples: TrainingSamples, seed: int) -> list[Indices]:
        """Refused where the data do not say whom they come from."""
        if samples.groups is None:
            raise ConfigError("split is groups, but the data set does not say whom its samples come from. Use labels.")
        return split_by_group(
            samples.groups, seed=seed, num_servers=samples.num_servers, images_per_server=max(samples.amounts)
        )


@dataclass(frozen=True)
class Iid:
    """At random: every server has the same distribution."""

    takes_amounts: ClassVar[bool] = True
    is_disjoint: ClassVar[bool] = True

    def split(self, samples: TrainingSamples, seed: int) -> list[Indices]:
        """Cut a random order into one part for each server."""
        return _cut(samples.choose(seed), np.asarray(samples.amounts, dtype=np.float64))


@dataclass(frozen=True)
class Shards:
    """Sorted by label, cut into equal shards, of which every server gets a few at random (McMahan et al. 2017)."""

    shards_per_server: int = 2

    takes_amounts: ClassVar[bool] = False
    is_disjoint: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.shards_per_server < 1:
            raise ConfigError(f"split_options.shards_per_server is {self.shards_per_server}, but must be at least 1.")

    def split(self, samples: TrainingSamples, seed: int) -> list[Indices]:
        """Deal out the shards."""
        labels, chosen = samples.find_labels("shards"), samples.choose(seed)
        count = samples.num_servers * self.shards_per_server
        if count > len(chosen):
            raise ConfigError(
                f"{samples.num_servers} servers with split_options.shards_per_server {self.shards_per_server} need "
                f"{count} shards, but there are {len(chosen)} samples to split. Use fewer shards or servers."
            )
        shards = np.array_split(chosen[np.argsort(labels[chosen], kind="stable")], count)
        dealt = stream(seed, "shards").permutation(count).reshape(samples.num_servers, -1)
        return [
            stream(seed, "partition", server).permutation(np.concatenate([shards[shard] for shard in own]))
            for server, own in enumerate(dealt)
        ]


@dataclass(frozen=True)
class Dirichlet:
    """Label skew without common samples, Dir(λ) over the servers for each label, or over the labels for each server.

    By label (Yurochkin et al. 2019) servers own different amounts. By server (Hsu et al. 2019, with the same λ for
    every label) they own equal ones; where all samples are given out, those who come last take what is left.
    """

    by: str = "label"
    min_samples: int = 10  # of every server; by label, draws with fewer are repeated
    label_concentration: float = 0.3

    takes_amounts: ClassVar[bool] = False
    is_disjoint: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_one_of("split_options.by", self.by, ("label", "server"))
        if self.min_samples < 1:
            raise ConfigError(f"split_options.min_samples is {self.min_samples}, but must be at least 1.")

    def split(self, samples: TrainingSamples, seed: int) -> list[Indices]:
        """Draw by either side."""
        labels, chosen = samples.find_labels("dirichlet"), samples.choose(seed)
        least = len(chosen) // samples.num_servers
        if self.min_samples > least:
            raise ConfigError(
                f"split_options.min_samples is {self.min_samples}, but {len(chosen)} samples are {least} for each of "
                f"{samples.num_servers} servers. Use at most {least}."
            )
        if self.by == "label":
            return self._draw_by_label(chosen, labels[chosen], samples.num_servers, seed)
        return draw_label_skewed_shards(
            labels,
            seed=seed,
            num_servers=samples.num_servers,
            images_per_server=[len(part) for part in np.array_split(chosen, samples.num_servers)],
            label_concentration=self.label_concentration,
            disjoint=True,
        )

    def _draw_by_label(self, chosen: Indices, labels: Indices, num_servers: int, seed: int) -> list[Indices]:
        rng = stream(seed, "dirichlet")
        by_label = [chosen[labels == label] for label in np.unique(labels)]
        for _ in range(_ATTEMPTS):
            shares = rng.dirichlet(np.full(num_servers, self.label_concentration), size=len(by_label))
            cuts = [_cut(own, share) for own, share in zip(by_label, shares, strict=True)]
            parts = [np.concatenate(part) for part in zip(*cuts, strict=True)]
            if min(map(len, parts)) >= self.min_samples:
                return [stream(seed, "partition", server).permutation(part) for server, part in enumerate(parts)]
        raise ConfigError(
            f"In none of {_ATTEMPTS} draws with label_concentration {self.label_concentration:g} has each of "
            f"{num_servers} servers {self.min_samples} of {len(chosen)} samples. Use a larger label_concentration, "
            "fewer servers, or a smaller split_options.min_samples."
        )


def _cut(order: Indices, shares: NDArray[np.float64]) -> list[Indices]:
    """Cut into consecutive parts, as near to the shares as whole samples allow."""
    bounds = np.rint(np.cumsum(shares) / shares.sum() * len(order)).astype(np.int64)
    return np.split(order, bounds[:-1])


PARTITIONERS: Registry[type[Partitioner]] = Registry(
    "hatdfed.partitioners",
    {"labels": LabelSkew, "groups": Groups, "iid": Iid, "shards": Shards, "dirichlet": Dirichlet},
    wanted="a dataclass with a method split",
    fits=lambda thing: isinstance(thing, type),
    is_dataclass=True,
    methods=("split",),
)
