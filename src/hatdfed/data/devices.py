"""The simulated devices of one server, and the training data that they send in a round."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import torch
from torch import Tensor

from hatdfed.core.availability import is_present
from hatdfed.randomness import stream, torch_seed
from hatdfed.server.work import Batch, Indices, LazyBatches, Work, WorkPlan


@dataclass(frozen=True)
class LocalWork:
    """How a server collects and trains on a round's data (D4, D15)."""

    num_devices: int = 30
    samples_per_round: int = 60
    online_probability: float = 0.5  # ρ
    local_passes: int = 2
    batch_size: int = 64
    probe_size: int = 16  # B
    probe_top_up: bool = False  # fill the probe with own images that no device sent
    churn: float = 0.0  # probability that the server is absent; then no device can connect to it


@dataclass(frozen=True, eq=False)
class SimulatedDevices:
    """One server's data: a shard of the pool, of which the connected devices send a part in each round."""

    pool: Batch  # the training images of all servers
    shard: Indices  # those that this server owns
    validation: Batch
    num_classes: int  # of the data set: a label may have no image at all
    settings: LocalWork
    seed: int
    server: int

    @cached_property
    def label_counts(self) -> Tensor:
        """[C] number of images of each label in the shard."""
        labels = self.pool.y[torch.from_numpy(self.shard)]
        return torch.bincount(labels, minlength=self.num_classes)

    @property
    def largest_batch(self) -> int:
        """Size of the largest possible batch, when every device connects."""
        return min(self.settings.batch_size, self.settings.samples_per_round, len(self.shard))

    def work(self, t: int) -> Work:
        """Collect the data of round t, in batches."""
        plan = self.plan(t)
        return Work(
            batches=LazyBatches(self._take, plan.batches),
            num_samples=plan.num_samples,
            devices_online=plan.devices_online,
            probe=self._take(plan.probe),
            validation=self.validation,
            seed=plan.seed,
            label_counts=self.label_counts,
        )

    def plan(self, t: int) -> WorkPlan:
        """Choose the round's images, as indices into the pool; a function of (seed, server, t) alone."""
        collected, devices_online = self._collect(t)
        return WorkPlan(
            batches=tuple(self.shard[chosen] for chosen in self._batches(t, collected)),
            num_samples=len(collected),
            devices_online=devices_online,
            probe=self.shard[self._probe(t, collected)],
            seed=torch_seed(self.seed, "dropout", t, self.server),
        )

    def _collect(self, t: int) -> tuple[Indices, int]:
        """Split the round's samples over the devices; those that connect, A^d ~ Bern(ρ), send theirs."""
        rng = stream(self.seed, "devices", t, self.server)
        samples = rng.permutation(len(self.shard))[: self.settings.samples_per_round]
        online = rng.random(self.settings.num_devices) < self.settings.online_probability
        online &= is_present(self.seed, t, self.server, self.settings.churn)
        return samples[online[_assign_devices(len(samples), self.settings.num_devices)]], int(online.sum())

    def _batches(self, t: int, collected: Indices) -> list[Indices]:
        rng = stream(self.seed, "batches", t, self.server)
        size = self.settings.batch_size
        batches: list[Indices] = []
        for _ in range(self.settings.local_passes):
            order = rng.permutation(collected)
            batches += [order[start : start + size] for start in range(0, len(order), size)]
        return batches

    def _probe(self, t: int, collected: Indices) -> Indices:
        """Choose B of the round's samples, or of the server's own images when no device connected (D15)."""
        rng = stream(self.seed, "probe", t, self.server)
        probe = rng.permutation(collected)[: self.settings.probe_size]
        missing = self.settings.probe_size - len(probe)
        if len(collected) and not (self.settings.probe_top_up and missing):
            return probe
        unsent = np.setdiff1d(np.arange(len(self.shard)), collected)
        return np.concatenate([probe, rng.permutation(unsent)[:missing]])

    def _take(self, chosen: Indices) -> Batch:
        index = torch.from_numpy(chosen)
        return Batch(self.pool.x[index], self.pool.y[index])


@lru_cache
def _assign_devices(num_samples: int, num_devices: int) -> Indices:
    """Assign each of the round's samples to a device: consecutive parts, as equal in size as possible."""
    return np.repeat(
        np.arange(num_devices), [len(part) for part in np.array_split(np.arange(num_samples), num_devices)]
    )
